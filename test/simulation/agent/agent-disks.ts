/**
 * A process's part in volumes that outlive machines: the real reader of claims and the real `volumesInUse`, wired as `node-pods.ts`
 * wires them.
 */
import type { Kube, KubeRequest } from "../../../src/kube/kube.ts";
import { isTerminal } from "../../../src/kube/pod.ts";
import type { Node } from "../../../src/kube/wire.ts";
import { VolumesInUse } from "../../../src/node/volumes-in-use.ts";
import { parseMachineId } from "../../../src/podspec/machine-id.ts";
import { PodDisks } from "../../../src/podspec/references/disks.ts";
import { csiNodeId } from "../../../src/provider/csi-names.ts";
import { ProviderError } from "../../../src/provider/errors.ts";
import type { VolumeProvider } from "../../../src/provider/volume.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import type { Random } from "../../../src/util/random.ts";
import { judgeLead } from "../invariants/agent-conduct.ts";
import type { Fault } from "../network.ts";
import type { DiskWorld } from "../world/disks.ts";
import { CLUSTER, NODE } from "../world/names.ts";
import type { Agent } from "./agent.ts";
import { NodeStatusWriter } from "./node-writer.ts";

interface AgentDisksOptions {
  agent: Agent;
  disks: DiskWorld;
  kube: Kube;
  random: Random;
  requeue: (uid: string) => void;
  fault: { kube: (kind: Fault) => Error; backend: (kind: Fault) => Error };
}

export class AgentDisks {
  readonly pods: PodDisks;
  readonly #options: AgentDisksOptions;
  readonly #inUse: VolumesInUse;
  readonly #writer: NodeStatusWriter;
  /** By volume: the backend's revision when it last said which machines have it. */
  readonly #asked = new Map<string, number>();
  #node: Node | undefined;

  constructor(options: AgentDisksOptions) {
    const { agent, kube, random, requeue } = options;
    const { clock, mutant } = agent;
    this.#options = options;
    const reservation = csiNodeId(CLUSTER, NODE);
    const inUse = new VolumesInUse({
      provider: { volumes: { get: (id: string) => this.#get(id) } as unknown as VolumeProvider },
      // None of their volumes is of a driver of others.
      machines: () => Promise.resolve({ items: [] }),
      reservation,
      podOf: (machine) => parseMachineId(CLUSTER, machine),
      clock,
      random,
      logger: silentLogger,
      onChange: () => this.#writer.refresh(),
      onTold: requeue,
    });
    this.#inUse = inUse;
    const wanted = (node: Node) => inUse.wanted(mutant?.nodeSeen?.(node) ?? node);
    this.#writer = new NodeStatusWriter({
      kube,
      volumes: { wanted, isNews: (names) => inUse.isNews(names), told: (names) => inUse.told(names) },
      cached: () => this.#node,
      clock,
      random,
    });
    const claim = (uid: string, handles: readonly string[]) => {
      const isTold = inUse.claim(uid, handles);
      return mutant?.isTold?.(isTold) ?? isTold;
    };
    const use = {
      claim,
      isOthers: (uid: string, handle: string) => inUse.isOthers(uid, handle),
      isHeldByOthers: (uid: string, handle: string, signal: AbortSignal) => inUse.isHeldByOthers(uid, handle, signal),
      release: (uid: string) => inUse.release(uid),
    };
    const isLive = (uid: string) => {
      const pod = agent.controller.store.get(uid);
      return pod !== undefined && !isTerminal(pod);
    };
    const tokens = { issueOne: () => Promise.reject(new Error("no tokens are issued here")) };
    const parts = { kube, nodeName: NODE, reservation, use, tokens, clock, random, isLive };
    this.pods = new PodDisks({ ...parts, onChange: requeue });
  }

  run(signal: AbortSignal): void {
    void this.#writer.run(signal);
    void this.#inUse.run(signal);
  }

  /** The watch tells how the Node is. */
  deliverNode(): void {
    const { node } = this.#options.disks;
    if (node === this.#node) return;
    this.#node = node;
    this.pods.nodeChanged(node);
  }

  /** What is asked of the API server about the Node, claims, volumes and attachments. */
  async request(request: KubeRequest): Promise<unknown> {
    const { agent, disks, fault } = this.#options;
    const { network, name: writer } = agent;
    const changes = request.method !== "GET";
    if (changes) judgeLead(agent, network);
    const asked = new Map(this.#asked);
    const name = changes ? "api.PATCH of the Node" : "ref.GET";
    const exec = () => (changes ? disks.patchNode(request, { name: writer, asked }) : disks.read(request.path));
    return network.send({ agent, name, uid: undefined, changes, exec, fault: fault.kube });
  }

  async #get(handle: string): ReturnType<VolumeProvider["get"]> {
    const { agent, disks, fault } = this.#options;
    const { mutant, network, world } = agent;
    const name = "be.volume";
    let revision = 0;
    const exec = () => {
      if (world.isBackendAway) throw fault.backend("unavailable");
      ({ revision } = world.backend);
      return disks.get(handle);
    };
    try {
      const sent = { agent, name, uid: undefined, changes: false, exec, fault: fault.backend };
      const volume = await network.send<Awaited<ReturnType<VolumeProvider["get"]>>>(sent);
      world.trace?.(`${agent.name}: asked ${handle} ${revision} ${JSON.stringify(volume.attachments)}`);
      this.#asked.set(handle, revision);
      return mutant?.volume?.(volume) ?? volume;
    } catch (thrown) {
      throw thrown instanceof ProviderError && mutant?.provider ? mutant.provider(thrown, name) : thrown;
    }
  }
}
