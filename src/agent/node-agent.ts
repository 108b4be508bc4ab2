/**
 * One virtual node: its pods, its kubelet API and its Node object, built in this order by the files beside this one,
 * and what is done with them together.
 */
import { nodeObjectFields } from "../config/reload.ts";
import type { NodeConfig } from "../config/schema.ts";
import { guardedKube } from "../kube/guarded.ts";
import type { Kube } from "../kube/kube.ts";
import type { KubeletServer } from "../kubelet/server.ts";
import type { NodeController } from "../node/node-controller.ts";
import type { PodController } from "../pods/controller.ts";
import type { HealthCheck, HealthChecks } from "../telemetry/health.ts";
import { BackendInfo } from "./backend-info.ts";
import { createKubelet } from "./node-kubelet.ts";
import { createNode, type NodeObject } from "./node-object.ts";
import type { NodeAgentOptions } from "./node-options.ts";
import { createPods, type NodePods } from "./node-pods.ts";
import { OwnNode } from "./own-node.ts";
import { observeQueue } from "./pod-metrics.ts";
import { StaticPodFolder } from "./static-pod-folder.ts";
import { StaticPods } from "./static-pods.ts";

/** Requests are served only after this much of the shutdown grace; streams get what is left. */
const CLOSE_GRACE_MS = 5_000;
const READY_POLL_MS = 100;
/** An attempt may take three requests of 10 s, and the next follows within 10 s. */
const LONGEST_LEASE_ATTEMPT_MS = 60_000;
const FLUSH_MS = 2_000;

interface Parts {
  own: OwnNode;
  pods: NodePods;
  server: KubeletServer;
  node: NodeObject;
  staticPods: StaticPods;
}

export class NodeAgent {
  readonly name: string;
  readonly pods: PodController;
  readonly server: KubeletServer;
  readonly #options: NodeAgentOptions;
  readonly #own: OwnNode;
  readonly #pods: NodePods;
  readonly #node: NodeObject;
  readonly #staticPods: StaticPods;
  readonly #forget: (() => void)[] = [];
  #acts = false;

  /** Binds the kubelet port; registers nothing yet. @throws when the port is taken or a certificate cannot be read */
  static async open(options: NodeAgentOptions): Promise<NodeAgent> {
    const acting = options.guard ? guardedKube(options.kube, options.guard) : options.kube;
    const backend = new BackendInfo(options.node, process.arch);
    const own = new OwnNode(options.node.name);
    const pods = createPods(options, acting, backend, own);
    const server = await createKubelet(options, backend, pods, own).catch((thrown: unknown) => {
      // It is tried again and again, and what it shares with other nodes would keep each that was tried.
      pods.close();
      throw thrown;
    });
    // The last, because a Node says on which port its kubelet API is.
    const node = createNode(options, acting, backend, pods, server.port);
    own.follow(node.controller);
    node.controller.store.onChange(({ object }) => pods.disks.nodeChanged(object));
    const staticPods = createStaticPods(options, acting, pods, node);
    return new NodeAgent(options, { own, pods, server, node, staticPods });
  }

  private constructor(options: NodeAgentOptions, { own, pods, server, node, staticPods }: Parts) {
    this.name = options.node.name;
    this.pods = pods.controller;
    this.server = server;
    this.#options = options;
    this.#own = own;
    this.#pods = pods;
    this.#node = node;
    this.#staticPods = staticPods;
    this.#tellHealth();
  }

  /** Follows pods, machines and references, and serves the kubelet API: all that a standby does. */
  async observe(signal: AbortSignal): Promise<void> {
    const { certificate, kube } = this.#options;
    await Promise.all([this.server.run(signal), this.pods.observe(signal), certificate?.run(kube, signal)]);
  }

  /**
   * Registers the node, keeps its lease and status, and works on its pods. Needs `observe` beside it; may be called
   * once.
   *
   * @throws ConfigError when another kubelet or cluster id answers for the Node of this name
   */
  async act(signal: AbortSignal): Promise<void> {
    const { events } = this.#options;
    this.#acts = true;
    const sending = new AbortController();
    const sender = events.run(sending.signal);
    const refused = new AbortController();
    const linked = AbortSignal.any([signal, refused.signal]);
    await Promise.all([
      this.#node.controller.run(linked).catch((thrown: unknown) => refused.abort(thrown)),
      this.#node.followCapacity(linked),
      this.#node.tellRange(linked),
      this.#node.tellServices(linked),
      this.#pods.volumesInUse.run(linked),
      this.#pods.grownClaims.run(linked),
      this.#pods.growingClaims.run(linked),
      // The pods of a Node that is not ours belong to its own kubelet.
      this.#node.controller
        .claimed(linked)
        .then(() => Promise.all([this.pods.act(linked), this.#staticPods.run(linked)])),
    ]);
    if (!refused.signal.aborted)
      await this.#node.controller.giveUp(AbortSignal.timeout(FLUSH_MS)).catch(() => undefined);
    // The last events say why the node failed, so they get a short time to be sent.
    await events.flush(AbortSignal.timeout(FLUSH_MS)).catch(() => undefined);
    sending.abort(signal.reason);
    await sender;
    refused.signal.throwIfAborted();
  }

  /** Resolves when the Node was seen to be ours and the API server's copy of it says Ready, or the signal aborts. */
  async ready(signal: AbortSignal): Promise<void> {
    const { clock } = this.#options;
    await this.#node.controller.claimed(signal);
    while (!signal.aborted && !this.#own.isReady) await clock.sleep(READY_POLL_MS, signal).catch(() => undefined);
  }

  /** Takes over what a changed configuration says of the Node object; everything else goes on as it is. */
  describe(node: NodeConfig): void {
    Object.assign(this.#options.node, nodeObjectFields(node));
    this.#node.controller.refresh();
  }

  /** The node is served no longer. @returns whether its machines' range is free for another node */
  async releaseRange(signal: AbortSignal): Promise<boolean> {
    return await this.#node.releaseRange(signal);
  }

  get acts(): boolean {
    return this.#acts;
  }

  /** Its Node: what takes the node out of the cluster needs it. */
  get controller(): NodeController {
    return this.#node.controller;
  }

  /** The provider and the API server's connections are its owner's, who may make another node agent of them. */
  async close(): Promise<void> {
    for (const forget of this.#forget) forget();
    this.#pods.close();
    await this.server.close(CLOSE_GRACE_MS);
  }

  #tellHealth(): void {
    const { livez, readyz, metrics, clock } = this.#options;
    // The attempts have limits of their own, so this depends on the process alone.
    const add = (checks: HealthChecks, name: string, check: HealthCheck) => {
      checks.add(name, check);
      this.#forget.push(() => checks.remove(name));
    };
    add(livez, `${this.name}-lease`, () => {
      const { attemptedAt } = this.#node.controller.lease;
      const silentMs = attemptedAt === undefined ? 0 : clock.monotonic() - attemptedAt;
      if (!this.#acts || silentMs < LONGEST_LEASE_ATTEMPT_MS) return undefined;
      return `nothing has tried to renew the lease for ${Math.round(silentMs / 1000)} s`;
    });
    add(readyz, `${this.name}-pods-synced`, () =>
      this.pods.store.synced ? undefined : "the list of pods is not complete yet",
    );
    // A standby is ready to take over; only who acts answers for the registration.
    add(readyz, `${this.name}-registered`, () =>
      this.#acts && this.#own.current === undefined && !this.#node.controller.isGone
        ? "the node is not registered yet"
        : undefined,
    );
    this.#forget.push(
      metrics.onScrape(() => {
        metrics.machinesMissing.set({ node: this.name }, this.pods.losses.missing);
        observeQueue(metrics, this.name, this.pods.queue);
      }),
    );
  }
}

function createStaticPods(
  { node: { name, staticPodPath }, events, clock, logger }: NodeAgentOptions,
  acting: Kube,
  { controller: { store } }: NodePods,
  { controller }: NodeObject,
): StaticPods {
  return new StaticPods({
    folder: staticPodPath === undefined ? undefined : new StaticPodFolder(staticPodPath, name),
    nodeName: name,
    kube: acting,
    pods: store,
    nodeUid: () => controller.uid,
    isLeaving: () => controller.isLeaving,
    events,
    clock,
    logger,
  });
}
