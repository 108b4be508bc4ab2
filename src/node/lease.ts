import { isNotFound } from "../kube/errors.ts";
import type { Kube } from "../kube/kube.ts";
import { mergePatch } from "../kube/patch.ts";
import { leasePath, leasesPath } from "../kube/paths.ts";
import { Backoff } from "../queue/backoff.ts";
import type { Logger } from "../telemetry/logger.ts";
import { rfc3339Micro, type Clock } from "../util/clock.ts";
import { toError } from "../util/errors.ts";
import type { Random } from "../util/random.ts";

const NAMESPACE = "kube-node-lease";
export const LEASE_DURATION_SECONDS = 40;
const RENEW_MS = 10_000;
/** So that three attempts fit into the lease's duration. */
const TIMEOUT_MS = 10_000;

export interface NodeLeaseOptions {
  kube: Kube;
  clock: Clock;
  random: Random;
  logger: Logger;
  nodeName: string;
  /** The Node's UID, once it is known: the lease goes when the Node goes. */
  nodeUid: () => string | undefined;
  onRenewed?: (seconds: number) => void;
}

/**
 * The node's heartbeat. It says that the agent is alive and nothing else: it asks nobody, least of all the backend, and
 * has a connection of its own. The control plane takes the node for lost when it stops for about 40 s.
 */
export class NodeLease {
  readonly #options: NodeLeaseOptions;
  #renewedAt: number | undefined;

  constructor(options: NodeLeaseOptions) {
    this.#options = options;
  }

  /** Monotonic time of the last renewal, in milliseconds. */
  get renewedAt(): number | undefined {
    return this.#renewedAt;
  }

  /** Renews every 10 s; after a failure in 200 ms, doubling to 7 s. Resolves when `signal` aborts. */
  async run(signal: AbortSignal): Promise<void> {
    const { clock, random, logger, onRenewed } = this.#options;
    const backoff = new Backoff({ initialMs: 200, maxMs: 7_000, jitter: "none", clock, random });
    while (!signal.aborted) {
      const startedAt = clock.monotonic();
      let delayMs: number;
      try {
        await this.#renew(signal);
        this.#renewedAt = clock.monotonic();
        onRenewed?.((this.#renewedAt - startedAt) / 1000);
        backoff.reset();
        delayMs = RENEW_MS * (1 + 0.04 * random());
      } catch (error) {
        if (signal.aborted) return;
        delayMs = backoff.next();
        logger.warn({ err: toError(error), delayMs }, "The node's lease was not renewed");
      }
      try {
        await clock.sleep(delayMs, signal);
      } catch {
        return; // aborted
      }
    }
  }

  async #renew(signal: AbortSignal): Promise<void> {
    const { kube, clock, nodeName, nodeUid } = this.#options;
    const uid = nodeUid();
    const spec = {
      holderIdentity: nodeName,
      leaseDurationSeconds: LEASE_DURATION_SECONDS,
      renewTime: rfc3339Micro(clock.now()),
    };
    // Always sent along, so that a lease made before the Node, or for an earlier Node, gets its owner.
    const ownerReferences = uid === undefined ? undefined : [{ apiVersion: "v1", kind: "Node", name: nodeName, uid }];
    const common = { signal, lane: "lease", timeoutMs: TIMEOUT_MS } as const;
    try {
      const metadata = ownerReferences && { ownerReferences };
      await kube.request({
        ...mergePatch(leasePath(NAMESPACE, nodeName), { ...(metadata && { metadata }), spec }),
        ...common,
      });
    } catch (error) {
      if (!isNotFound(error)) throw error;
      const metadata = { name: nodeName, namespace: NAMESPACE, ...(ownerReferences && { ownerReferences }) };
      await kube.request({
        method: "POST",
        path: leasesPath(NAMESPACE),
        body: { apiVersion: "coordination.k8s.io/v1", kind: "Lease", metadata, spec },
        ...common,
      });
    }
  }
}
