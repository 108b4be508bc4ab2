/**
 * The CSINode of the node: by which id the CSI driver knows it, where its machines are, and how many volumes they may
 * have. The scheduler counts by it, the provisioner and the attacher look the node up in it. It goes with its Node.
 */
import { isAlreadyExists, isForbidden, isNotFound } from "../kube/errors.ts";
import type { Kube } from "../kube/kube.ts";
import { mergePatch } from "../kube/patch.ts";
import { resourcePath } from "../kube/paths.ts";
import type { CsiNode, Node } from "../kube/wire.ts";
import { CSI_DRIVER, csiNodeId, ZONE_KEY } from "../provider/csi-names.ts";
import type { Logger } from "../telemetry/logger.ts";
import type { Clock } from "../util/clock.ts";
import { toError } from "../util/errors.ts";
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
const GROUP = { group: "storage.k8s.io", resource: "csinodes" };

/** What the driver is to say there; undefined for a backend without volumes. */
function driverOf({ clusterId, name, volumes }: NodeDescription): Driver | undefined {
  if (volumes === undefined) return undefined;
  const { zone, count } = volumes;
  return {
    name: CSI_DRIVER,
    nodeID: csiNodeId(clusterId, name),
    topologyKeys: zone === undefined ? [] : [ZONE_KEY],
    ...(count !== undefined && { allocatable: { count } }),
  };
}

export class CsiNodeWriter {
  readonly #options: CsiNodeOptions;
  /** What was found to be right, for which Node, until when. */
  #right: { text: string; until: number } | undefined;
  #isRefused = false;

  constructor(options: CsiNodeOptions) {
    this.#options = options;
  }

  /** Tells of what fails, and tries it again with a later call: a Node without volumes is better than none. */
  async write(node: Node, description: NodeDescription, signal: AbortSignal): Promise<void> {
    // What the backend can do is not known yet: what an earlier agent wrote is still so.
    if (description.capabilities === undefined) return;
    const driver = driverOf(description);
    const { clock, logger, warn } = this.#options;
    const text = JSON.stringify([node.metadata?.uid, driver]);
    if (this.#right?.text === text && clock.monotonic() < this.#right.until) return;
    try {
      await this.#bring(node, driver, signal);
      this.#right = { text, until: driver === undefined ? Infinity : clock.monotonic() + LOOK_MS };
    } catch (thrown) {
      if (signal.aborted) return;
      if (!isForbidden(thrown)) {
        logger.warn({ err: thrown }, "The CSINode could not be brought up to date");
        return;
      }
      this.#right = { text, until: clock.monotonic() + LOOK_MS };
      if (driver !== undefined && !this.#isRefused)
        warn("CannotWriteCSINode", `pods with persistent volumes stay Pending: ${toError(thrown).message}`);
      this.#isRefused = true;
    }
  }

  async #bring(node: Node, driver: Driver | undefined, signal: AbortSignal): Promise<void> {
    const { kube } = this.#options;
    const name = node.metadata?.name ?? "";
    const path = resourcePath({ ...GROUP, name });
    const current = await kube.request<CsiNode>({ method: "GET", path, signal }).catch((thrown: unknown) => {
      if (isNotFound(thrown)) return undefined;
      throw thrown;
    });
    const owner = { apiVersion: "v1", kind: "Node", name, uid: node.metadata?.uid };
    if (current === undefined) {
      if (driver === undefined) return;
      const body = {
        apiVersion: "storage.k8s.io/v1",
        kind: "CSINode",
        metadata: { name, ownerReferences: [owner] },
        spec: { drivers: [driver] },
      };
      await kube.request({ method: "POST", path: resourcePath(GROUP), body, signal }).catch((thrown: unknown) => {
        if (!isAlreadyExists(thrown)) throw thrown;
      });
      return;
    }
    const present = current.spec.drivers.find(({ name }) => name === CSI_DRIVER);
    const others = current.spec.drivers.filter(({ name }) => name !== CSI_DRIVER);
    const isOwned = current.metadata?.ownerReferences?.some(({ uid }) => uid === owner.uid) ?? false;
    const isRight = sameDriver(present, driver) && isOwned;
    if (isRight) return;
    const { resourceVersion } = current.metadata ?? {};
    const patch = (drivers: readonly Driver[], version?: string) =>
      kube.request<CsiNode>({
        ...mergePatch(path, {
          metadata: { ownerReferences: [owner], ...(version !== undefined && { resourceVersion: version }) },
          spec: { drivers },
        }),
        signal,
      });
    // An entry cannot be changed: it goes first, and comes as it is to be.
    if (present !== undefined && !sameDriver(present, driver)) {
      const without = await patch(others, resourceVersion);
      if (driver !== undefined) await patch([...others, driver], without.metadata?.resourceVersion);
    } else await patch(driver === undefined ? others : [...others, driver], resourceVersion);
  }
}

function sameDriver(a: Driver | undefined, b: Driver | undefined): boolean {
  const textOf = (driver: Driver | undefined) =>
    driver && JSON.stringify([driver.nodeID, driver.topologyKeys ?? [], driver.allocatable?.count ?? null]);
  return textOf(a) === textOf(b);
}
