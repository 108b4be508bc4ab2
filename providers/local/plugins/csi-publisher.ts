/**
 * Has CSI drivers mount volumes on this host for single machines, and take them back: as a kubelet's
 * (pkg/volume/csi/csi_mounter.go), whose words the refusals have. What is asked of a driver about one volume is asked
 * in turn, and no call is broken off: a driver that still mounts when it is asked to take back would leave a mount.
 *
 *     ROOT/pods/UID/volumes/kubernetes.io~csi/NAME/vol_data.json   what a kubelet writes down, and whose it is
 *     ROOT/pods/UID/volumes/kubernetes.io~csi/NAME/mount           where the driver mounts; made and removed by it
 *
 * The machine's record says that a driver is about to be asked before it is. What lies there of no machine (its driver
 * was away for too long, or its record is lost) is taken back later, by what is written beside it.
 */
import { createHash } from "node:crypto";
import { lstatSync, readdirSync, readFileSync, realpathSync, rmdirSync, rmSync } from "node:fs";
import { dirname, join } from "node:path";
import { Code, ConnectError } from "@connectrpc/connect";
import { type Clock, type Logger, toError, unlessAborted } from "../../../src/provider/kit/index.ts";
import {
  NodeServiceCapability_RPC_Type as Rpc,
  VolumeCapability_AccessMode_Mode as Mode,
} from "../../../src/csi/api.gen.js";
import {
  askedVolumes,
  type CsiHolder,
  type CsiSource,
  type CsiVolume,
  csiVolumes,
  type PublishedVolume,
  type PublishedVolumes,
  VolumesNotReady,
} from "../csi-volumes.ts";
import { isMissing, makeFolder, writeJson } from "../host/files.ts";
import { mountPoints } from "../host/mounts.ts";
import { ownTree } from "../volumes/ownership.ts";
import type { CsiPlugin } from "./csi-plugin.ts";

interface CsiPublisherOptions {
  /** @throws Error for a driver that is not there */
  drivers: { plugin(driver: string): CsiPlugin; readonly registered: { waitAtMost: WaitAtMost } };
  /** The folder that plugins know. */
  root: string;
  clock: Clock;
  logger: Logger;
  /** All machines that are not over, with what they have. */
  holders: () => Iterable<Pick<CsiHolder, "id" | "published">>;
}

type WaitAtMost = (clock: Clock, ms: number, signal: AbortSignal) => Promise<unknown>;

/** How often what is nobody's is looked for. */
const LOOK_MS = 30_000;
const DATA = "vol_data.json";
const CSI_FOLDER = "volumes/kubernetes.io~csi";
const MAX_MESSAGE_CHARS = 1024;

/** As a kubelet's, with the machine that has it. */
interface VolumeData {
  driverName: string;
  volumeHandle: string;
  vmletMachine: string;
}

export class CsiPublisher implements CsiSource {
  readonly #options: CsiPublisherOptions;
  /** By place, what is being done with it. */
  readonly #turns = new Map<string, Promise<unknown>>();
  readonly #closing = new AbortController();

  constructor(options: CsiPublisherOptions) {
    this.#options = options;
  }

  close(): void {
    this.#closing.abort(new Error("the backend is stopping"));
  }

  // --- for a machine ---

  async publish(holder: CsiHolder, signal: AbortSignal): Promise<void> {
    const asked = this.#asked(holder);
    for (const volume of csiVolumes(holder.spec)) {
      const at = asked[volume.name]!;
      try {
        // Before anything is written: who never asked a driver need not wait for it at its end.
        this.#options.drivers.plugin(volume.driver);
        if (this.#others(holder.id).some(({ path }) => path === at.path))
          throw new Error(`another machine has ${at.path}`);
      } catch (thrown) {
        throw notReady(volume, thrown);
      }
    }
    if (JSON.stringify(holder.published) !== JSON.stringify(asked)) holder.keep(asked);
    for (const volume of csiVolumes(holder.spec)) {
      const at = asked[volume.name]!;
      const publish = async () => {
        if (!signal.aborted) await this.#publishOne(holder, volume, at);
      };
      try {
        await unlessAborted(this.#inTurn(at.path, publish), signal);
      } catch (thrown) {
        signal.throwIfAborted();
        throw notReady(volume, thrown);
      }
    }
  }

  /** Those that it was asked for already stay where they are. */
  #asked({ id, spec, published = {} }: CsiHolder): PublishedVolumes {
    const { root } = this.#options;
    const asked = Object.entries(askedVolumes(id, spec)).map(
      ([name, volume]) => [name, { ...volume, root, ...published[name] }] as const,
    );
    return Object.fromEntries(asked);
  }

  async #publishOne(holder: CsiHolder, volume: CsiVolume, at: PublishedVolume): Promise<void> {
    const plugin = this.#options.drivers.plugin(volume.driver);
    const target = this.#target(at);
    const volumeId = volumeIdOf(at);
    makeFolder(dirname(target), 0o750);
    const data: VolumeData & Record<string, string> = {
      ...{ driverName: volume.driver, volumeHandle: volumeId, specVolID: volume.name },
      ...{ volumeLifecycleMode: "Ephemeral", vmletMachine: holder.id },
    };
    writeJson(join(dirname(target), DATA), data, { flush: true });
    const signal = this.#closing.signal;
    const can = await plugin.capabilities(signal);
    const group = holder.spec.security?.fs_group;
    const ownGroup = group !== undefined && can.has(Rpc.VOLUME_MOUNT_GROUP) ? String(group) : "";
    const request = {
      volumeId,
      targetPath: target,
      readonly: volume.read_only === true,
      secrets: volume.secrets ?? {},
      volumeContext: { ...volume.attributes, ...volume.secret_attributes },
      volumeCapability: {
        accessType: {
          case: "mount" as const,
          value: { fsType: volume.fs_type ?? "", mountFlags: [], volumeMountGroup: ownGroup },
        },
        accessMode: {
          mode: can.has(Rpc.SINGLE_NODE_MULTI_WRITER) ? Mode.SINGLE_NODE_MULTI_WRITER : Mode.SINGLE_NODE_WRITER,
        },
      },
    };
    await plugin.publish(request, signal);
    await assertMounted(target, this.#options.root);
    if (group === undefined || ownGroup !== "" || volume.apply_group !== true || volume.read_only === true) return;
    const onMismatchOnly = holder.spec.security?.fs_group_change_policy === "on_root_mismatch";
    await ownTree(target, group, { onMismatchOnly });
  }

  async unpublish(holder: CsiHolder, signal: AbortSignal): Promise<void> {
    for (const [name, at] of Object.entries(holder.published ?? {})) {
      const unpublish = () => this.#unpublishOne(at.driver, this.#target(at), volumeIdOf(at));
      try {
        await unlessAborted(this.#inTurn(at.path, unpublish), signal);
      } catch (thrown) {
        signal.throwIfAborted();
        throw new Error(`UnmountVolume.TearDown failed for volume "${name}" : ${wordsOf(thrown)}`, { cause: thrown });
      }
      const { [name]: _gone, ...left } = holder.published ?? {};
      holder.keep(Object.keys(left).length > 0 ? left : undefined);
    }
  }

  leave(holder: CsiHolder): void {
    if (holder.published !== undefined) holder.keep(undefined);
  }

  async #unpublishOne(driver: string, target: string, volumeId: string): Promise<void> {
    if (lstatSync(dirname(target), { throwIfNoEntry: false }) === undefined) return;
    await this.#options.drivers.plugin(driver).unpublish({ volumeId, targetPath: target }, this.#closing.signal);
    clear(target);
  }

  #target({ root = this.#options.root, path }: PublishedVolume): string {
    return join(root, path);
  }

  /** What the other machines have. */
  #others(id: string): PublishedVolume[] {
    return [...this.#options.holders()]
      .filter((each) => each.id !== id)
      .flatMap(({ published = {} }: { published?: PublishedVolumes | undefined }) => Object.values(published));
  }

  // --- for nobody ---

  /** Has taken back what no machine has, until the signal aborts. */
  async run(signal: AbortSignal): Promise<void> {
    const { clock, logger, drivers } = this.#options;
    while (!signal.aborted) {
      try {
        const byDriver = Map.groupBy(this.#leftovers(), ({ data }) => data.driverName);
        // One driver that is silent keeps no other's.
        const work = [...byDriver].map(([driver, leftovers]) => this.#takeAllBack(driver, leftovers));
        await unlessAborted(Promise.all(work), signal);
      } catch (thrown) {
        if (!signal.aborted) logger.warn({ err: thrown }, "Volumes that no machine has cannot be looked for");
      }
      await drivers.registered.waitAtMost(clock, LOOK_MS, signal);
    }
  }

  async #takeAllBack(driver: string, leftovers: readonly { path: string }[]): Promise<void> {
    const { logger } = this.#options;
    try {
      for (const { path } of leftovers) await this.#takeBack(path);
      logger.info({ driver, volumes: leftovers.length }, "Volumes that no machine has are taken back");
    } catch (thrown) {
      logger.warn({ driver, err: thrown }, "A volume that no machine has is not taken back yet");
    }
  }

  async #takeBack(path: string): Promise<void> {
    await this.#inTurn(path, async () => {
      const data = dataOf(join(this.#options.root, dirname(path)));
      if (data === undefined || this.#others("").some((each) => each.path === path)) return;
      await this.#unpublishOne(data.driverName, join(this.#options.root, path), data.volumeHandle);
    });
  }

  #leftovers(): { path: string; data: VolumeData }[] {
    const { root } = this.#options;
    const had = new Set(this.#others("").map(({ path }) => path));
    return foldersIn(join(root, "pods")).flatMap((pod) =>
      foldersIn(join(root, "pods", pod, CSI_FOLDER)).flatMap((name) => {
        const folder = join("pods", pod, CSI_FOLDER, name);
        const path = join(folder, "mount");
        const data = had.has(path) ? undefined : dataOf(join(root, folder));
        return data === undefined ? [] : [{ path, data }];
      }),
    );
  }

  async #inTurn<T>(place: string, work: () => Promise<T>): Promise<T> {
    const before = this.#turns.get(place);
    const turn = Promise.resolve(before).then(work, work);
    this.#turns.set(place, turn);
    try {
      return await turn;
    } finally {
      if (this.#turns.get(place) === turn) this.#turns.delete(place);
    }
  }
}

/** kubelet: makeVolumeHandle. By the place, which no two have. */
function volumeIdOf({ path }: Pick<PublishedVolume, "path">): string {
  const [, pod = "", , , name = ""] = path.split("/");
  return `csi-${createHash("sha256").update(`${pod}${name}`).digest("hex")}`;
}

function notReady({ name }: CsiVolume, thrown: unknown): VolumesNotReady {
  const message = `MountVolume.SetUp failed for volume "${name}" : ${wordsOf(thrown)}`;
  return new VolumesNotReady(message, { cause: thrown });
}

/** As Go's gRPC has it. */
function wordsOf(thrown: unknown): string {
  const text =
    thrown instanceof ConnectError
      ? `rpc error: code = ${Code[thrown.code]} desc = ${thrown.rawMessage}`
      : toError(thrown).message;
  return text.slice(0, MAX_MESSAGE_CHARS);
}

/**
 * A driver whose container does not let its mounts out (mountPropagation) says that it has mounted, and nobody else
 * sees anything: the machine would run with an empty folder.
 * @throws Error that says so
 */
async function assertMounted(target: string, root: string): Promise<void> {
  const stats = lstatSync(target, { throwIfNoEntry: false });
  if (stats?.isDirectory() === true) {
    const real = realpathSync(target);
    if (readdirSync(real).length > 0 || (await mountPoints()).some(({ path }) => path === real)) return;
  }
  throw new Error(
    `the driver says that it has mounted ${target}, and this host sees nothing there: does its container mount ${join(root, "pods")} with mountPropagation: Bidirectional?`,
  );
}

/** What the driver has left of it: an empty folder at most. @throws what the system says when it is more */
function clear(target: string): void {
  const folder = dirname(target);
  removeEmpty(target);
  rmSync(join(folder, DATA), { force: true });
  removeEmpty(folder);
  // The pod's other volumes may be there.
  let parent = dirname(folder);
  for (let depth = 0; depth < 3; depth++, parent = dirname(parent)) {
    try {
      removeEmpty(parent);
    } catch {
      return;
    }
  }
}

function removeEmpty(folder: string): void {
  try {
    rmdirSync(folder);
  } catch (thrown) {
    if (!isMissing(thrown)) throw thrown;
  }
}

function foldersIn(path: string): string[] {
  try {
    return readdirSync(path, { withFileTypes: true }).flatMap((entry) => (entry.isDirectory() ? entry.name : []));
  } catch (thrown) {
    if (isMissing(thrown)) return [];
    throw thrown;
  }
}

/** Undefined for what is not ours. */
function dataOf(folder: string): VolumeData | undefined {
  try {
    const data = JSON.parse(readFileSync(join(folder, DATA), "utf8")) as Partial<VolumeData> | null;
    const texts = [data?.driverName, data?.volumeHandle, data?.vmletMachine];
    return texts.every((text) => typeof text === "string") ? (data as VolumeData) : undefined;
  } catch {
    // Not there, or torn: then its driver was not asked yet.
    return undefined;
  }
}
