/**
 * The CSINode of the node: by which id CSI drivers know it, where its machines are, and how many volumes they may have.
 * The scheduler counts by it, provisioners and attachers look the node up in it. It goes with its Node.
 *
 * The drivers are vmlet's own, where the backend has volumes, and those of others whose node plugins run on the
 * backend's host; these have their topology in the Node's labels, too, as from a kubelet (nodeinfomanager). Which of
 * the entries were written here is in an annotation: what is not told any more goes, also after a restart.
 */
import { isAlreadyExists, isForbidden, isKubeApiError, isNotFound } from "../kube/errors.ts";
import type { Kube } from "../kube/kube.ts";
import { mergePatch, strategicPatch } from "../kube/patch.ts";
import { nodePath, resourcePath } from "../kube/paths.ts";
import type { CsiNode, Node } from "../kube/wire.ts";
import { CSI_DRIVER, csiNodeId, ZONE_KEY } from "../provider/csi-names.ts";
import type { Logger } from "../telemetry/logger.ts";
import type { Clock } from "../util/clock.ts";
import { toError } from "../util/errors.ts";
import type { CsiDriverInfo } from "./capacity.ts";
import type { NodeDescription } from "./settings.ts";

type Driver = CsiNode["spec"]["drivers"][number];

interface CsiNodeOptions {
  kube: Kube;
  clock: Clock;
  logger: Logger;
  /** Tells of what the API server refuses, as an event on the Node. */
  warn: (reason: string, message: string) => void;
}

/** One that is right is looked at again this often: others may delete it. */
const LOOK_MS = 60_000;
const MAX_TOLD = 256;
const GROUP = { group: "storage.k8s.io", resource: "csinodes" };
/** On the CSINode: the drivers besides vmlet's own that were written here. */
const DRIVERS_ANNOTATION = "vmlet.dev/csi-drivers";
/** Of Kubernetes' own labels, those that say where a node is (NodeRestriction lets a node write these). */
const PLACES = /^(?:topology\.kubernetes\.io|failure-domain\.beta\.kubernetes\.io)\/(?:zone|region)$/;
const KUBERNETES_OWN = /(?:^|\.)(?:kubernetes|k8s)\.io\//;

/** What vmlet's own driver is to say there; undefined for a backend without volumes. */
function ownDriver({ clusterId, name, volumes }: NodeDescription): Driver | undefined {
  if (volumes === undefined) return undefined;
  const { zone, count } = volumes;
  return {
    name: CSI_DRIVER,
    nodeID: csiNodeId(clusterId, name),
    topologyKeys: zone === undefined ? [] : [ZONE_KEY],
    ...(count !== undefined && { allocatable: { count } }),
  };
}

function driverOf({ name, node_id, topology = {}, max_volumes }: CsiDriverInfo): Driver {
  return {
    name,
    nodeID: node_id,
    topologyKeys: Object.keys(topology).toSorted(),
    ...(max_volumes !== undefined && max_volumes > 0 && { allocatable: { count: max_volumes } }),
  };
}

export class CsiNodeWriter {
  readonly #options: CsiNodeOptions;
  /** What was found to be right, for which Node, until when. */
  #right: { text: string; until: number } | undefined;
  #isRefused = false;
  /** What was told of drivers that cannot be written. */
  readonly #told = new Set<string>();

  constructor(options: CsiNodeOptions) {
    this.#options = options;
  }

  /**
   * Tells of what fails, and tries it again with a later call: a Node without volumes is better than none.
   * @param others drivers of others; undefined while the backend has not told of them: what was written is still so
   */
  async write(
    node: Node,
    description: NodeDescription,
    others: readonly CsiDriverInfo[] | undefined,
    signal: AbortSignal,
  ): Promise<void> {
    // What the backend can do is not known yet: what an earlier agent wrote is still so.
    if (description.capabilities === undefined) return;
    const own = ownDriver(description);
    const { clock, logger, warn } = this.#options;
    const text = JSON.stringify([node.metadata?.uid, own, others, others && placesOf(node, others)]);
    if (this.#right?.text === text && clock.monotonic() < this.#right.until) return;
    const needsNone = own === undefined && (others ?? []).length === 0;
    try {
      const placed = others && (await this.#placed(node, others, signal));
      await this.#bring(node, own, placed?.map(driverOf), signal);
      this.#right = { text, until: needsNone ? Infinity : clock.monotonic() + LOOK_MS };
    } catch (thrown) {
      if (signal.aborted) return;
      if (!isForbidden(thrown)) {
        logger.warn({ err: thrown }, "The CSINode could not be brought up to date");
        return;
      }
      this.#right = { text, until: clock.monotonic() + LOOK_MS };
      if (!needsNone && !this.#isRefused)
        warn("CannotWriteCSINode", `pods with persistent volumes stay Pending: ${toError(thrown).message}`);
      this.#isRefused = true;
    }
  }

  /** Those whose topology the Node's labels say; as from a kubelet, a driver is not there without. */
  async #placed(node: Node, drivers: readonly CsiDriverInfo[], signal: AbortSignal): Promise<CsiDriverInfo[]> {
    const labels: Record<string, string> = { ...node.metadata?.labels };
    const placed: CsiDriverInfo[] = [];
    for (const driver of drivers) {
      const { name, topology = {} } = driver;
      try {
        const missing = missingLabels(labels, topology);
        if (Object.keys(missing).length > 0)
          await this.#options.kube.request({
            ...strategicPatch(nodePath(nameOf(node), "status"), { metadata: { labels: missing } }),
            signal,
          });
        Object.assign(labels, missing);
        placed.push(driver);
      } catch (thrown) {
        signal.throwIfAborted();
        // What the API server did not refuse for good is tried again: until then the CSINode stays as it is.
        if (isKubeApiError(thrown) && thrown.status !== 403 && thrown.status !== 422) throw thrown;
        this.#tell(
          `driver ${name} is not added: error updating Node object with CSI driver node info: ${toError(thrown).message}`,
        );
      }
    }
    return placed;
  }

  #tell(message: string): void {
    if (this.#told.has(message)) return;
    // A driver may say something else each time.
    if (this.#told.size >= MAX_TOLD) this.#told.clear();
    this.#told.add(message);
    this.#options.logger.warn({ why: message }, "A CSI driver of the backend's host is not told to the cluster");
    this.#options.warn("CannotWriteCSINode", message);
  }

  /** @param told drivers of others; undefined: those that were written here stay */
  async #bring(
    node: Node,
    own: Driver | undefined,
    told: readonly Driver[] | undefined,
    signal: AbortSignal,
  ): Promise<void> {
    const path = resourcePath({ ...GROUP, name: nameOf(node) });
    const current = await this.#read(path, signal);
    const wanted = [...(own ? [own] : []), ...(told ?? [])];
    const written = told && told.length > 0 ? told.map((driver) => driver.name).join(",") : undefined;
    if (current === undefined) return await this.#create(node, wanted, written, signal);
    const steps = stepsTo(current, wanted, told === undefined);
    const isMarked = told === undefined || markOf(current) === written;
    if (steps.length === 0 && !(isMarked && isOwned(current, node))) steps.push(current.spec.drivers);
    const annotations = told !== undefined && { annotations: { [DRIVERS_ANNOTATION]: written ?? null } };
    await this.#patch(path, steps, { ...annotations, ownerReferences: ownersOf(node) }, current, signal);
  }

  async #read(path: string, signal: AbortSignal): Promise<CsiNode | undefined> {
    return await this.#options.kube.request<CsiNode>({ method: "GET", path, signal }).catch((thrown: unknown) => {
      if (isNotFound(thrown)) return undefined;
      throw thrown;
    });
  }

  /** One after the other, and none that another's write has come before. */
  async #patch(
    path: string,
    steps: readonly (readonly Driver[])[],
    changed: object,
    current: CsiNode,
    signal: AbortSignal,
  ): Promise<void> {
    let { resourceVersion } = current.metadata ?? {};
    for (const drivers of steps) {
      const metadata = { ...changed, ...(resourceVersion !== undefined && { resourceVersion }) };
      const request = { ...mergePatch(path, { metadata, spec: { drivers } }), signal };
      const next = await this.#options.kube.request<CsiNode>(request);
      resourceVersion = next.metadata?.resourceVersion;
    }
  }

  async #create(
    node: Node,
    drivers: readonly Driver[],
    written: string | undefined,
    signal: AbortSignal,
  ): Promise<void> {
    if (drivers.length === 0) return;
    const annotations = written !== undefined && { annotations: { [DRIVERS_ANNOTATION]: written } };
    const metadata = { name: nameOf(node), ...annotations, ownerReferences: ownersOf(node) };
    const body = { apiVersion: "storage.k8s.io/v1", kind: "CSINode", metadata, spec: { drivers } };
    const request = { method: "POST" as const, path: resourcePath(GROUP), body, signal };
    await this.#options.kube.request(request).catch((thrown: unknown) => {
      if (!isAlreadyExists(thrown)) throw thrown;
    });
  }
}

const nameOf = ({ metadata }: Node): string => metadata?.name ?? "";

const ownersOf = (node: Node) => [{ apiVersion: "v1", kind: "Node", name: nameOf(node), uid: node.metadata?.uid }];

const isOwned = ({ metadata }: CsiNode, node: Node): boolean =>
  metadata?.ownerReferences?.some(({ uid }) => uid === node.metadata?.uid) ?? false;

const markOf = ({ metadata }: CsiNode): string | undefined => metadata?.annotations?.[DRIVERS_ANNOTATION];

/**
 * The lists of drivers by which the CSINode gets to have those wanted; none when it has.
 * @param keepWritten those that were written here stay, too
 */
function stepsTo(current: CsiNode, wanted: readonly Driver[], keepWritten: boolean): (readonly Driver[])[] {
  const { spec } = current;
  const written = keepWritten ? [] : (markOf(current) ?? "").split(",");
  const ours = new Set([CSI_DRIVER, ...written, ...wanted.map(({ name }) => name)]);
  const others = spec.drivers.filter(({ name }) => !ours.has(name));
  const right = spec.drivers.filter((driver) => wanted.some((each) => sameDriver(each, driver)));
  const all = [...others, ...wanted];
  if (all.length === spec.drivers.length && right.length === wanted.length) return [];
  const isChanged = ({ name }: Driver) =>
    wanted.some((each) => each.name === name) && !right.some((each) => each.name === name);
  // An entry cannot be changed: it goes first, and comes as it is to be.
  return spec.drivers.some(isChanged) ? [[...others, ...right], all] : [all];
}

function sameDriver(a: Driver, b: Driver): boolean {
  const textOf = ({ name, nodeID, topologyKeys, allocatable }: Driver) =>
    JSON.stringify([name, nodeID, (topologyKeys ?? []).toSorted(), allocatable?.count ?? null]);
  return textOf(a) === textOf(b);
}

/** What the Node says of where these drivers have it. */
function placesOf({ metadata }: Node, drivers: readonly CsiDriverInfo[]): (string | undefined)[] {
  return drivers.flatMap(({ topology = {} }) => Object.keys(topology).map((key) => metadata?.labels?.[key]));
}

/** @throws Error in a kubelet's words when the Node says otherwise; or for a label that is not a driver's to give */
function missingLabels(
  labels: Readonly<Record<string, string>>,
  topology: Readonly<Record<string, string>>,
): Record<string, string> {
  const missing: Record<string, string> = {};
  for (const [key, value] of Object.entries(topology)) {
    const present = Object.hasOwn(labels, key) ? labels[key] : undefined;
    if (present === value) continue;
    const [told, existing] = [
      `${JSON.stringify(key)}:${JSON.stringify(value)}`,
      `${JSON.stringify(key)}:${JSON.stringify(present)}`,
    ];
    if (present !== undefined)
      throw new Error(`detected topology value collision: driver reported ${told} but existing label is ${existing}`);
    if (KUBERNETES_OWN.test(key) && !PLACES.test(key))
      throw new Error(`driver reported ${told}, a label that is Kubernetes' own`);
    missing[key] = value;
  }
  return missing;
}
