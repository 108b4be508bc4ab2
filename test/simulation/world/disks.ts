/**
 * Volumes that outlive machines: claims and volumes of the API server, what the Nodes say of them, VolumeAttachments with the
 * controllers that make and remove them, and a second node that wants the same volumes. Real are the backend's rules
 * (`VolumeBook`) and the CSI controller in front of them; each step of the others is a choice point.
 */
import { createHash } from "node:crypto";
import { Backends } from "../../../src/csi/backends.ts";
import { ControllerService } from "../../../src/csi/controller.ts";
import { volumeIdOf } from "../../../src/csi/volume-ids.ts";
import { KubeApiError } from "../../../src/kube/errors.ts";
import type { Node } from "../../../src/kube/wire.ts";
import { CSI_DRIVER, csiNodeId, csiVolumeName, csiVolumeOf } from "../../../src/provider/csi-names.ts";
import { isOver, type MachineSpec } from "../../../src/provider/machine.ts";
import { clusterPrefix, LABEL_CLUSTER } from "../../../src/provider/owner.ts";
import type { Provider } from "../../../src/provider/provider.ts";
import { VolumeBook } from "../../../src/provider/volume-book.ts";
import {
  type PersistentVolume,
  type VolumeAttachment,
  type VolumeClass,
  type VolumeProvider,
  volumeClaims,
} from "../../../src/provider/volume.ts";
import { judgeDetached, judgeNodeWrite, judgeSoleOwner, type NodeWriter } from "../invariants/disk-writes.ts";
import { pick } from "../seeded.ts";
import { Violation } from "../violation.ts";
import type { Json } from "./api-server.ts";
import { CLUSTER, NODE, OTHER_NODE, uidOf } from "./names.ts";
import type { World, WorldFlaws } from "./world.ts";

export const CLAIM_NAME = "data";
const NODES = [NODE, OTHER_NODE] as const;
const SIZE = 2 ** 30;
/** A class whose volumes several machines may have, and which are claimed for one node all the same. */
const SHARED = "shared";
const CLASSES: readonly VolumeClass[] = [
  { name: "local", sharing: "one" },
  { name: SHARED, sharing: "writers" },
];
/** Of a VolumeAttachment's steps: how often its controller dies before it has written down what it did. */
const CRASH_SHARE = 0.15;
/** How often a volume is detached whatever its Node says: the node counts as lost. */
const FORCE_SHARE = 0.03;
/** How often a volume is attached though it is elsewhere: by a controller that has not seen it, or has lost its lead. */
const DOUBLE_SHARE = 0.1;
/** Of those that are detached whatever their Node says: how often it is by its owner's word. */
const OUT_OF_SERVICE_SHARE = 0.5;

/** What a Node says of volumes, by their handles. */
interface NodeVolumes {
  inUse: readonly string[];
  attached: readonly string[];
  version: number;
}

export interface Attachment {
  handle: string;
  node: string;
  attached: boolean;
  deleting: boolean;
  /** Its Node was seen not to have it in use: it is being detached, whatever comes. */
  checked: boolean;
  /** Its node counted as lost. */
  forced: boolean;
  /** And its Node's owner has said that nothing of it runs, be it so or not. */
  outOfService: boolean;
  /** Its controller waits for an answer. */
  busy: boolean;
}

const idOfNode = (node: string): string => csiNodeId(CLUSTER, node);

export class DiskWorld {
  readonly handles: readonly string[];
  readonly attachments = new Map<string, Attachment>();
  /** Each state of this agent's Node, in order. */
  readonly nodeLog: Node[] = [];
  /** Which process has last taken a volume out of what our Node says, and how often that had changed by then. */
  readonly removedBy = new Map<string, { name: string; version: number }>();
  readonly #world: World;
  readonly #nodes = new Map<string, NodeVolumes>(NODES.map((name) => [name, { inUse: [], attached: [], version: 1 }]));
  readonly #book: VolumeBook;
  readonly #csi: ControllerService;
  /** Machines of the other node: pod and volume. */
  readonly #others = new Map<string, string>();
  readonly #namespaces: ReadonlyMap<string, string>;
  /** Machines whose volume was taken by force. */
  readonly #takenFrom = new Set<string>();
  /** Nothing is heard of the other node, and its machines go on. */
  #isOtherLost = false;

  constructor(world: World, namespaces: readonly string[]) {
    this.#world = world;
    this.#namespaces = new Map(namespaces.map((name) => [name, volumeIdOf(CLUSTER, `pv-${name}`)]));
    this.handles = [...this.#namespaces.values()];
    const clock = { now: () => world.now, monotonic: () => world.now } as never;
    this.#book = new VolumeBook({
      clock,
      fsTypes: ["ext4"],
      classes: CLASSES,
      attachments: (id) => this.holders(id),
      stop: (machine) => this.#takeFrom(machine),
      contents: {
        make: () => Promise.resolve({ size_bytes: SIZE }),
        grow: (_record, bytes) => Promise.resolve(bytes),
        remove: () => Promise.resolve(),
        room: () => Promise.resolve(SIZE),
      },
      records: this.handles.map((id) => ({
        fingerprint: "",
        volume: {
          id,
          version: 1,
          labels: { [LABEL_CLUSTER]: clusterPrefix(CLUSTER) },
          state: "available" as const,
          size_bytes: SIZE,
          mode: "filesystem" as const,
          class: pick(world.random, CLASSES).name,
          created_at: new Date(world.now).toISOString(),
          reservations: [],
        },
      })),
    });
    const provider = backendOf(this.#book, world.flaws);
    const isOutOfService = (node: string) =>
      Promise.resolve([...this.attachments.values()].some((each) => each.node === node && each.outOfService));
    this.#csi = new ControllerService({ backends: new Backends([provider]), clusterId: CLUSTER, isOutOfService });
    this.#logNode();
  }

  // ----------------------------------------------------------------------------------------------------------- backend

  get(handle: string): Promise<PersistentVolume> {
    return this.#book.get(handle, { signal: new AbortController().signal });
  }

  /** @throws ProviderError when this machine cannot have its volumes */
  assertClaimable(spec: MachineSpec): void {
    if (this.#world.flaws.noReservations !== true) this.#book.assertClaimable(spec);
  }

  /** To be called when a machine has been made. @throws Violation */
  judgeBirth(spec: MachineSpec): void {
    for (const { claim } of volumeClaims(spec)) {
      const { reservations, class: named } = this.#book.record(claim.volume)!.volume;
      judgeSoleOwner(this.#trueHolders(claim.volume), {
        isReserved: reservations.some(({ name }) => name === claim.reservation),
        isShared: named === SHARED,
      });
    }
  }

  /** Machines that have a volume, as the backend tells it. */
  holders(handle: string): VolumeAttachment[] {
    const { forgetsStopping, believesForce } = this.#world.flaws;
    return this.#trueHolders(handle).filter(
      ({ machine }) =>
        (forgetsStopping !== true || this.#world.backend.machines.get(machine)?.machine.state !== "stopping") &&
        (believesForce !== true || !this.#takenFrom.has(machine)),
    );
  }

  /** As the backend stops a machine whose volume is taken by force: at once where it can be reached, and in its own time. */
  #takeFrom(machine: string): void {
    const { backend, history, now } = this.#world;
    this.#takenFrom.add(machine);
    const known = backend.machines.get(machine)?.machine;
    if (known === undefined) {
      if (!this.#isOtherLost) this.#others.delete(machine);
    } else if (!isOver(known) && known.state !== "stopping" && known.state !== "deleting") {
      history.of(uidOf(known)).stopBy = now;
      backend.change(machine, { state: "stopping" });
    }
  }

  #trueHolders(handle: string): VolumeAttachment[] {
    const held: VolumeAttachment[] = [];
    for (const [machine, known] of this.#world.backend.machines)
      if (!isOver(known.machine) && volumeClaims(known.spec).some(({ claim }) => claim.volume === handle))
        held.push({ machine, reservation: idOfNode(NODE), read_only: false, state: "attached" });
    const state = this.#isOtherLost ? "unknown" : "attached";
    for (const [uid, volume] of this.#others)
      if (volume === handle) held.push({ machine: uid, reservation: idOfNode(OTHER_NODE), read_only: false, state });
    return held;
  }

  // -------------------------------------------------------------------------------------------------------- API server

  get node(): Node {
    return this.nodeLog.at(-1)!;
  }

  /** Claims, volumes, attachments and the Node, each by its name. @throws KubeApiError when there is none */
  read(path: string): Json {
    if (path === `/api/v1/nodes/${NODE}`) return this.node;
    const claim = /namespaces\/([^/]+)\/persistentvolumeclaims\//.exec(path)?.[1];
    if (claim !== undefined)
      return {
        metadata: { name: CLAIM_NAME, namespace: claim, uid: `claim-${claim}` },
        spec: { volumeName: `pv-${claim}` },
        status: { phase: "Bound" },
      };
    const volume = /persistentvolumes\/pv-(.+)$/.exec(path)?.[1];
    if (volume !== undefined)
      return {
        metadata: { name: `pv-${volume}` },
        spec: {
          accessModes: ["ReadWriteOnce"],
          claimRef: { uid: `claim-${volume}` },
          csi: { driver: CSI_DRIVER, volumeHandle: this.#namespaces.get(volume) },
        },
      };
    const name = path.split("/").at(-1)!;
    const found = [...this.attachments.values()].find((each) => objectName(each) === name);
    if (found === undefined)
      throw new KubeApiError(`volumeattachments.storage.k8s.io "${name}" not found`, {
        status: 404,
        reason: "NotFound",
        details: { name, kind: "volumeattachments" },
      });
    return {
      metadata: { name, ...(found.deleting && { deletionTimestamp: new Date(this.#world.now).toISOString() }) },
      status: { attached: found.attached },
    };
  }

  /** An agent's patch of its Node's status. */
  patchNode({ body }: { body?: unknown }, writer: NodeWriter): Node {
    const { metadata, status } = body as Json;
    const current = this.#nodes.get(NODE)!;
    if (metadata?.resourceVersion !== undefined && metadata.resourceVersion !== String(current.version))
      throw new KubeApiError("the object has been modified", { status: 409, reason: "Conflict" });
    const inUse = (status.volumesInUse as string[]).map((name) => csiVolumeOf(name)!.handle);
    for (const handle of current.inUse.filter((each) => !inUse.includes(each))) {
      this.removedBy.set(handle, { name: writer.name, version: this.nodeLog.length });
      judgeNodeWrite(this.#world, handle, writer);
    }
    this.#setNode(NODE, { inUse });
    return this.node;
  }

  saysInUse(handle: string): boolean {
    return this.#nodes.get(NODE)!.inUse.includes(handle);
  }

  attachmentOf(handle: string, node: string = NODE): Attachment | undefined {
    return this.attachments.get(`${handle} ${node}`);
  }

  #setNode(name: string, change: Partial<NodeVolumes>): void {
    const before = this.#nodes.get(name)!;
    const after = { ...before, ...change };
    // An agent's patch tells when it was made, too.
    if (name !== NODE && JSON.stringify(after) === JSON.stringify(before)) return;
    this.#nodes.set(name, { ...after, version: before.version + 1 });
    this.#world.trace?.(`  Node ${name} says: in use ${after.inUse.join()}; attached ${after.attached.join()}`);
    if (name === NODE) this.#logNode();
  }

  #logNode(): void {
    const { inUse, attached, version } = this.#nodes.get(NODE)!;
    const { node } = this.#world.capacity;
    this.nodeLog.push({
      ...node,
      metadata: { ...node.metadata!, resourceVersion: String(version) },
      status: {
        ...node.status,
        volumesInUse: inUse.map((handle) => csiVolumeName(CSI_DRIVER, handle)),
        volumesAttached: attached.map((handle) => ({ name: csiVolumeName(CSI_DRIVER, handle), devicePath: "" })),
      },
    });
  }

  // -------------------------------------------------------------------------------------------------------- controllers

  /** One step of somebody around the volumes. */
  step(): void {
    const steps = [...this.#controllerSteps(), ...this.#otherSteps()];
    if (steps.length > 0) pick(this.#world.random, steps)();
  }

  /** Everybody does what there is to do, a few times over. */
  liveOn(): void {
    this.#isOtherLost = false;
    for (let left = 12; left > 0; left--) this.step();
  }

  /** The other node is out of sight, or back. */
  loseOther(): void {
    this.#isOtherLost = !this.#isOtherLost;
  }

  /** Whether somebody else has the volume of this pod of ours, and may. */
  isElsewhere(pod: Json): boolean {
    const handle = this.#handleOf(pod);
    if (handle === undefined) return false;
    return this.attachmentOf(handle, OTHER_NODE) !== undefined || this.#trueHolders(handle).length > 0;
  }

  /** What is left that nobody needs. */
  litter(): Violation | undefined {
    for (const handle of this.handles) {
      const isWanted = this.#isWanted(handle, NODE) || this.#trueHolders(handle).length > 0;
      if (!isWanted && this.saysInUse(handle)) return new Violation("L10", "the Node says in use what nobody has");
      if (!isWanted && this.attachmentOf(handle) !== undefined)
        return new Violation("L10", "a volume stays attached though no pod wants it");
    }
    return undefined;
  }

  /** As kube-controller-manager's attach-detach controller and CSI's attacher do it. */
  #controllerSteps(): (() => void)[] {
    return this.handles.flatMap((handle) =>
      NODES.flatMap((node) => {
        const known = this.attachmentOf(handle, node);
        if (known === undefined) return this.#beginSteps(handle, node);
        return known.busy ? [] : this.#stepsOf(known);
      }),
    );
  }

  #beginSteps(handle: string, node: string): (() => void)[] {
    if (!this.#isWanted(handle, node)) return [];
    const isTaken = NODES.some((each) => this.attachmentOf(handle, each) !== undefined);
    if (isTaken && this.#world.random() > DOUBLE_SHARE) return [];
    const fresh = {
      handle,
      node,
      attached: false,
      deleting: false,
      checked: false,
      forced: false,
      outOfService: false,
      busy: false,
    };
    return [() => void this.attachments.set(`${handle} ${node}`, fresh)];
  }

  #stepsOf(each: Attachment): (() => void)[] {
    const { handle, node, attached, deleting } = each;
    const { random } = this.#world;
    const says = this.#nodes.get(node)!;
    const isReported = says.attached.includes(handle);
    const report = () => this.#setNode(node, { attached: [...says.attached, handle] });
    const unreport = () => this.#setNode(node, { attached: says.attached.filter((name) => name !== handle) });
    // A detachment that takes long is reported as attached again.
    if (deleting) return [() => this.#unpublish(each), ...(isReported || random() > 0.1 ? [] : [report])];
    if (each.checked) return [() => void (each.deleting = true)];
    const isWanted = this.#isWanted(handle, node);
    if (!attached) return [isWanted ? () => this.#publish(each) : () => void (each.deleting = true)];
    if (isWanted) return isReported ? [] : [report];
    if (random() < FORCE_SHARE) {
      return [
        () => {
          unreport();
          each.deleting = each.forced = true;
          each.outOfService = random() < OUT_OF_SERVICE_SHARE;
        },
      ];
    }
    if (isReported) return [unreport];
    return [says.inUse.includes(handle) ? report : () => void (each.checked = true)];
  }

  #publish(each: Attachment): void {
    const volumeCapability = { accessMode: { mode: 1 }, accessType: { case: "mount", value: {} } };
    const request = { volumeId: each.handle, nodeId: idOfNode(each.node), readonly: false, volumeCapability };
    this.#ask(each, (call) => this.#csi.controllerPublishVolume(request as never, call), {
      done: () => (each.attached = true),
    });
  }

  #unpublish(each: Attachment): void {
    const { handle, node } = each;
    const done = () => {
      judgeDetached(this.#trueHolders(handle), idOfNode(node));
      this.attachments.delete(`${handle} ${node}`);
      const { attached } = this.#nodes.get(node)!;
      this.#setNode(node, { attached: attached.filter((name) => name !== handle) });
    };
    this.#ask(
      each,
      (call) => this.#csi.controllerUnpublishVolume({ volumeId: handle, nodeId: idOfNode(node) } as never, call),
      { done, refused: this.#world.flaws.believesRelease === true ? done : undefined },
    );
  }

  #ask(
    each: Attachment,
    call: (call: { signal: AbortSignal }) => Promise<unknown>,
    { done, refused }: { done: () => void; refused?: (() => void) | undefined },
  ): void {
    each.busy = true;
    const isKilled = this.#world.random() < CRASH_SHARE;
    const then = (effect: (() => void) | undefined) => () => {
      each.busy = false;
      if (isKilled || this.attachmentOf(each.handle, each.node) !== each) return;
      try {
        effect?.();
      } catch (thrown) {
        if (!(thrown instanceof Violation)) throw thrown;
        this.violation ??= thrown;
      }
    };
    void call({ signal: new AbortController().signal }).then(then(done), then(refused));
  }

  violation: Violation | undefined;

  /** The other node's kubelet, which does it all as it should. */
  #otherSteps(): (() => void)[] {
    if (this.#isOtherLost) return [];
    const { api } = this.#world;
    const steps: (() => void)[] = [];
    for (const [key, pod] of api.pods) {
      const handle = this.#handleOf(pod);
      if (pod.spec.nodeName !== OTHER_NODE || handle === undefined) continue;
      const { uid, deletionTimestamp } = pod.metadata;
      if (deletionTimestamp !== undefined) {
        steps.push(() => {
          this.#others.delete(uid);
          api.dropFinalizers(key);
          api.delete(key, 0);
        });
      } else if (!this.#others.has(uid)) steps.push(() => this.#begin(uid, handle));
    }
    for (const uid of this.#others.keys())
      if (api.byUid(uid) === undefined) steps.push(() => void this.#others.delete(uid));
    const { inUse } = this.#nodes.get(OTHER_NODE)!;
    const unused = inUse.filter((handle) => !this.#isWanted(handle, OTHER_NODE) && !this.#isOthers(handle));
    if (unused.length > 0)
      steps.push(() => this.#setNode(OTHER_NODE, { inUse: inUse.filter((handle) => !unused.includes(handle)) }));
    return steps;
  }

  #begin(uid: string, handle: string): void {
    const { inUse, attached } = this.#nodes.get(OTHER_NODE)!;
    if (!inUse.includes(handle)) return this.#setNode(OTHER_NODE, { inUse: [...inUse, handle] });
    const attachment = this.attachmentOf(handle, OTHER_NODE);
    if (!attached.includes(handle) || attachment?.attached !== true || attachment.deleting) return;
    const claim = { name: "disk", type: "persistent" as const, volume: handle, reservation: idOfNode(OTHER_NODE) };
    const spec: MachineSpec = { labels: {}, containers: [], restart_policy: "never", volumes: [claim] };
    try {
      this.assertClaimable(spec);
      this.#others.set(uid, handle);
      this.judgeBirth(spec);
    } catch (thrown) {
      if (thrown instanceof Violation) this.violation ??= thrown;
    }
  }

  #isOthers(handle: string): boolean {
    return [...this.#others.values()].includes(handle);
  }

  #isWanted(handle: string, node: string): boolean {
    return [...this.#world.api.pods.values()].some(
      (pod) =>
        pod.spec.nodeName === node &&
        pod.status.phase !== "Failed" &&
        pod.status.phase !== "Succeeded" &&
        this.#handleOf(pod) === handle,
    );
  }

  #handleOf({ metadata, spec }: Json): string | undefined {
    const hasClaim = spec.volumes?.some((each: Json) => each.persistentVolumeClaim !== undefined);
    return hasClaim ? this.#namespaces.get(metadata.namespace) : undefined;
  }
}

/** The backend, as the CSI controller has it. */
function backendOf(book: VolumeBook, { sharesReserved }: WorldFlaws): Provider {
  const volumes: Pick<VolumeProvider, "get" | "reserve" | "release"> = {
    get: (id, options) => book.get(id, options),
    reserve: (id, name, { exclusive, ...rest }) =>
      book.reserve(id, name, { ...rest, exclusive: sharesReserved === true ? false : exclusive }),
    release: (id, name, options) => book.release(id, name, options),
  };
  const info = {
    name: "toy",
    version: "0",
    capabilities: ["volumes.persistent", "volumes.exclusive", "volumes.force_release"],
    volumeClasses: CLASSES,
  };
  return { volumes, getInfo: () => Promise.resolve(info) } as unknown as Provider;
}

/** As the attach-detach controller names it. */
function objectName({ handle, node }: Attachment): string {
  return `csi-${createHash("sha256").update(`${handle}${CSI_DRIVER}${node}`).digest("hex")}`;
}
