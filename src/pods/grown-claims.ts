/**
 * Claims of which a volume has grown for a pod's machine: their status says so once the machine has it, as a kubelet
 * writes it (pkg/volume/util: MarkFSResizeFinished). Of CSI drivers of others alone: who controls vmlet's own volumes
 * has them grow whole.
 *
 * Nothing is kept of it: what a machine says is compared with its pod's claims again by each new agent.
 */
import type { Kube } from "../kube/kube.ts";
import { mergePatch } from "../kube/patch.ts";
import { resourcePath } from "../kube/paths.ts";
import { saysNotFound } from "../kube/errors.ts";
import { claimNameOf, uidOf } from "../kube/pod.ts";
import type { PersistentVolume, PersistentVolumeClaim, Pod } from "../kube/wire.ts";
import { isClaimVolume, usedVolumes } from "../podspec/pod-volumes.ts";
import { csiVolumeName } from "../provider/csi-names.ts";
import type { Machine } from "../provider/machine.ts";
import { KeyedQueue } from "../queue/keyed-queue.ts";
import { Quantity } from "../resources/quantity.ts";
import type { Logger } from "../telemetry/logger.ts";
import type { Clock } from "../util/clock.ts";
import type { Random } from "../util/random.ts";

interface GrownClaimsOptions {
  kube: Kube;
  clock: Clock;
  random: Random;
  logger: Logger;
}

interface Grown {
  pod: Pod;
  /** Bytes of each volume, by the name that it has in the Node's status. */
  sizes: ReadonlyMap<string, number>;
}

/** Pods whose claims are written at once. */
const AT_ONCE = 2;
const AGAIN_MS = { initialMs: 1_000, maxMs: 300_000 };
/** Of a claim that grows (kubelet: knownResizeConditions). */
const RESIZING: ReadonlySet<string> = new Set([
  ...["FileSystemResizePending", "Resizing", "ControllerResizeError", "NodeResizeError"],
]);

export class GrownClaims {
  readonly #kube: Kube;
  readonly #queue: KeyedQueue;
  /** By pod. */
  readonly #grown = new Map<string, Grown>();

  constructor({ kube, ...options }: GrownClaimsOptions) {
    this.#kube = kube;
    this.#queue = new KeyedQueue({
      ...options,
      concurrency: AT_ONCE,
      backoff: AGAIN_MS,
      handle: (uid, signal) => this.#tell(uid, signal),
    });
  }

  /** Called at each look at a pod. */
  look(pod: Pod, { csi_volumes = [] }: Pick<Machine, "csi_volumes">): void {
    const sizes = new Map(
      csi_volumes.flatMap(({ driver, volume, size_bytes }) =>
        size_bytes === undefined ? [] : [[csiVolumeName(driver, volume), size_bytes] as const],
      ),
    );
    if (sizes.size === 0) return;
    const before = this.#grown.get(uidOf(pod))?.sizes;
    if (before?.size === sizes.size && [...sizes].every(([name, bytes]) => before.get(name) === bytes)) return;
    this.#grown.set(uidOf(pod), { pod, sizes });
    this.#queue.add(uidOf(pod));
  }

  /** Forgets a pod that is over or gone. */
  release(podUid: string): void {
    this.#grown.delete(podUid);
    this.#queue.forget(podUid);
  }

  /** Writes what is to be said until the signal aborts. */
  async run(signal: AbortSignal): Promise<void> {
    await this.#queue.run(signal);
  }

  async #tell(uid: string, signal: AbortSignal): Promise<void> {
    const { pod, sizes } = this.#grown.get(uid) ?? {};
    if (pod === undefined || sizes === undefined) return;
    for (const { volume } of usedVolumes(pod)) {
      const name = isClaimVolume(volume) ? claimNameOf(pod, volume) : undefined;
      if (name !== undefined) await this.#tellClaim({ namespace: pod.metadata?.namespace ?? "", name }, sizes, signal);
    }
    this.#queue.forget(uid);
  }

  async #tellClaim(of: { namespace: string; name: string }, sizes: Grown["sizes"], signal: AbortSignal): Promise<void> {
    const at = { resource: "persistentvolumeclaims", ...of };
    const claim = await this.#get<PersistentVolumeClaim>(at, signal);
    const volumeName = claim?.spec?.volumeName;
    if (claim === undefined || !volumeName) return;
    const { csi, capacity, claimRef } =
      (await this.#get<PersistentVolume>({ resource: "persistentvolumes", name: volumeName }, signal))?.spec ?? {};
    const bytes = csi && sizes.get(csiVolumeName(csi.driver, csi.volumeHandle));
    const size = capacity?.["storage"];
    if (bytes === undefined || size === undefined || claimRef?.uid !== claim.metadata?.uid) return;
    // It may have become larger still since the machine got it.
    if (Quantity.parse(size).toNumber() > bytes || !isLess(claim.status?.capacity?.["storage"], size)) return;
    await this.#kube.request({ ...grownStatus(resourcePath({ ...at, subresource: "status" }), claim, size), signal });
  }

  async #get<T>(
    at: { resource: string; namespace?: string; name: string },
    signal: AbortSignal,
  ): Promise<T | undefined> {
    try {
      return await this.#kube.request<T>({ method: "GET", path: resourcePath(at), signal });
    } catch (thrown) {
      if (saysNotFound(thrown, at)) return undefined;
      throw thrown;
    }
  }
}

const isLess = (told: string | undefined, size: string): boolean =>
  told !== undefined && Quantity.parse(told).compare(Quantity.parse(size)) < 0;

/** Of this version of the claim alone: another may be that of a claim that grows again. */
export function grownStatus(path: string, { metadata, status }: PersistentVolumeClaim, size: string) {
  const conditions = (status?.conditions ?? []).filter(({ type }) => !RESIZING.has(type));
  const { uid, resourceVersion } = metadata ?? {};
  return mergePatch(path, {
    metadata: { uid, resourceVersion },
    status: {
      capacity: { storage: size },
      conditions: conditions.length > 0 ? conditions : null,
      ...(status?.allocatedResourceStatuses && { allocatedResourceStatuses: { storage: null } }),
    },
  });
}
