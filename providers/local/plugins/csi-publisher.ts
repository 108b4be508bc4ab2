/**
 * Has CSI drivers mount volumes on this host for single machines, and take them back: as a kubelet's
 * (pkg/volume/csi/csi_mounter.go, csi_attacher.go), whose words the refusals have. What is asked of a driver about one
 * volume is asked in turn, and no call is broken off: a driver that still mounts when it is asked to take back would
 * leave a mount.
 *
 *     ROOT/pods/UID/volumes/kubernetes.io~csi/NAME/vol_data.json   what a kubelet writes down, and whose it is
 *     ROOT/pods/UID/volumes/kubernetes.io~csi/NAME/mount           where the driver mounts; made and removed by it
 *
 * and of a block device (csi_block.go):
 *
 *     ROOT/pods/UID/volumeDevices/kubernetes.io~csi/PV/vol_data.json
 *     ROOT/plugins/kubernetes.io/csi/volumeDevices/publish/PV/UID  the device itself; made and removed by the driver
 *
 * A device is looked at before a machine has it, and held open until it is taken back (csi-devices.ts). A volume is one
 * of both at a time, on all of the host: who wants it otherwise waits.
 *
 * One that outlives machines is staged before (csi-staging.ts) and, in the turn in which the last machine that has it
 * gives it back, unstaged: who comes meanwhile has it staged again.
 *
 * The machine's record says that a driver is about to be asked before it is. What lies there of no machine (its driver
 * was away for too long, or its record is lost) is taken back later, by what is written beside it.
 */
import { lstatSync } from "node:fs";
import { basename, dirname, join } from "node:path";
import { Code, ConnectError } from "@connectrpc/connect";
import { type Clock, type Logger, unlessAborted } from "../../../src/provider/kit/index.ts";
import { NodeServiceCapability_RPC_Type as Rpc } from "../../../src/csi/api.gen.js";
import {
  askedVolumes,
  type CsiGrowth,
  type CsiHolder,
  type CsiSource,
  type CsiVolume,
  csiVolumes,
  DEVICE_NOTES,
  isDevice,
  MOUNT_NOTES,
  noteFolder,
  type PublishedVolume,
  type PublishedVolumes,
  publishedAt,
  volumeIdOf,
  type VolumeKey,
} from "../csi-volumes.ts";
import { makeFolder, writeJson } from "../host/files.ts";
import { ownTree } from "../host/own-tree.ts";
import type { BlockDevices } from "./csi-devices.ts";
import {
  assertMounted,
  clearTarget,
  DATA,
  foldersIn,
  isThere,
  readData,
  removeTarget,
  textsOf,
} from "./csi-folders.ts";
import { LastingWork } from "./lasting-work.ts";
import { growingVolume, growVolume } from "./csi-growth.ts";
import type { CsiPlugin } from "./csi-plugin.ts";
import { driversGroup, expandRequest, publishRequest, stageRequest } from "./csi-requests.ts";
import { CsiStaging, keyOf } from "./csi-staging.ts";
import { notGrown, notReady, notTakenBack, type Step } from "./csi-words.ts";

interface CsiPublisherOptions {
  /** @throws Error for a driver that is not there */
  drivers: { plugin(driver: string): CsiPlugin; readonly registered: { waitAtMost: WaitAtMost } };
  /** The folder that plugins know. */
  root: string;
  devices: BlockDevices;
  clock: Clock;
  logger: Logger;
  /** All machines that are not over, with what they have. */
  holders: () => Iterable<Pick<CsiHolder, "id" | "published">>;
}

type WaitAtMost = (clock: Clock, ms: number, signal: AbortSignal) => Promise<unknown>;

/** How often what is nobody's is looked for. */
const LOOK_MS = 30_000;

/** What is written down beside a mount. */
interface VolumeData {
  driver: string;
  volumeId: string;
  machine: string;
  labels: Readonly<Record<string, string>>;
  /** Of one that outlives machines. */
  key?: VolumeKey;
}

export class CsiPublisher implements CsiSource {
  readonly #options: CsiPublisherOptions;
  readonly #staging = new CsiStaging();
  /** By place or volume, what is being done with it. */
  readonly #turns = new Map<string, Promise<unknown>>();
  readonly #closing = new AbortController();

  readonly #growing: LastingWork;

  constructor(options: CsiPublisherOptions) {
    this.#options = options;
    this.#growing = new LastingWork(options.clock);
  }

  close(): void {
    this.#closing.abort(new Error("the backend is stopping"));
  }

  // --- for a machine ---

  async publish(holder: CsiHolder, signal: AbortSignal): Promise<void> {
    const asked = this.#asked(holder);
    for (const volume of csiVolumes(holder.spec)) {
      try {
        // Before anything is written: who never asked a driver need not wait for it at its end.
        this.#options.drivers.plugin(volume.driver);
        this.#assertOwnPlace(holder.id, asked[volume.name]!, asked);
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
        await unlessAborted(this.#inTurns(at, publish), signal);
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

  #assertOwnPlace(id: string, at: PublishedVolume, asked: PublishedVolumes): void {
    if (this.#others(id).some(({ path }) => path === at.path)) throw new Error(`another machine has ${at.path}`);
    // A claim may be named twice, and is mounted once.
    const isSame = ({ driver, volume }: PublishedVolume) => driver === at.driver && volume === at.volume;
    if (Object.values(asked).some((each) => each !== at && each.path === at.path && !(at.volume && isSame(each))))
      throw new Error(`another volume of the machine has ${at.path}`);
    const isOther = (each: PublishedVolume) =>
      isSame(each) && at.volume !== undefined && isDevice(each) !== isDevice(at);
    if ([...Object.values(asked), ...this.#others(id)].some(isOther))
      throw new Error(
        `volume ${at.volume} of the driver is in use as ${wordOf(!isDevice(at))}, and would be ${wordOf(isDevice(at))} now`,
      );
  }

  /** What no machine has any more, and its driver has not taken back yet. */
  #assertNotLeft(at: PublishedVolume): void {
    const { driver, volume, root = this.#options.root } = at;
    if (volume === undefined) return;
    const key = { driver, volume, isBlock: !isDevice(at) };
    if (this.#staging.has(key, root) || this.#written(key.isBlock).some(({ data }) => isOf(data.key, key)))
      throw new Error(`its driver is yet to take it back as ${wordOf(key.isBlock)}`);
  }

  async #publishOne(holder: CsiHolder, volume: CsiVolume, at: PublishedVolume): Promise<void> {
    const plugin = this.#options.drivers.plugin(volume.driver);
    const signal = this.#closing.signal;
    const target = this.#target(at);
    const volumeId = volumeIdOf(at);
    const { security } = holder.spec;
    const wish = { volume, security, can: await plugin.capabilities(signal) };
    this.#assertNotLeft(at);
    // Before it is staged: by this a machine is known of which all else is lost.
    this.#writeDown(holder, volume, at);
    const place = { volumeId, targetPath: target, stagingTargetPath: await this.#stage(plugin, wish, at) };
    await plugin.publish(publishRequest(wish, place), signal);
    if (isDevice(at)) await this.#hold(holder, volume, at);
    else assertMounted(target, this.#options.root);
    await this.#expand(holder, plugin, wish, place);
    if (isDevice(at)) return;
    const group = security?.fs_group;
    if (group === undefined || driversGroup(wish) !== "" || volume.apply_group !== true || volume.read_only === true)
      return;
    const onMismatchOnly = security?.fs_group_change_policy === "on_root_mismatch";
    // Who writes meanwhile could put a link to a file of this host in a file's place.
    if (!this.#isShared(holder.id, at)) await ownTree(target, group, { onMismatchOnly });
  }

  #isShared(id: string, at: PublishedVolume): boolean {
    return this.#sharers(id, at).some((each) => isThere(this.#target(each)));
  }

  /** A device that is another volume's already would be two machines' disk. */
  async #hold(holder: CsiHolder, volume: CsiVolume, at: PublishedVolume): Promise<void> {
    const { devices } = this.#options;
    const target = this.#target(at);
    const numbers = devices.numbers(target);
    const own = Object.values(holder.published ?? {});
    const same = [...own, ...this.#others(holder.id)].find(
      (each) =>
        isDevice(each) &&
        (each.driver !== at.driver || each.volume !== at.volume) &&
        numbersAt(devices, this.#target(each)) === numbers,
    );
    if (same !== undefined)
      throw new Error(
        `the driver has published device ${numbers}, which is volume ${same.volume} of the driver ${same.driver} on this host`,
      );
    try {
      await devices.hold(target);
    } catch (thrown) {
      throw notReady(volume, thrown, "hold");
    }
    if (devices.numbers(target) !== numbers) throw new Error(`${target} has become another device meanwhile`);
  }

  /** @returns where it is staged; empty: it is not */
  async #stage(plugin: CsiPlugin, wish: Parameters<typeof stageRequest>[1], at: PublishedVolume): Promise<string> {
    const { persistent, driver } = wish.volume;
    if (persistent === undefined) return "";
    const { root = this.#options.root } = at;
    const key = { driver, volume: persistent.volume, isBlock: isDevice(at) };
    try {
      const path = await this.#staging.stage(key, { root, can: wish.can }, async (stagingTargetPath) => {
        const request = stageRequest(persistent, wish, { volumeId: persistent.volume, stagingTargetPath });
        await plugin.stage(request, this.#closing.signal);
      });
      return path ?? "";
    } catch (thrown) {
      throw notReady(wish.volume, thrown, "stage");
    }
  }

  /** Before the machine has it. What it had grown to is not asked for again. */
  async #expand(
    holder: CsiHolder,
    plugin: CsiPlugin,
    wish: Parameters<typeof expandRequest>[1],
    place: Parameters<typeof expandRequest>[2],
  ): Promise<void> {
    const { persistent } = wish.volume;
    if (persistent?.size_bytes === undefined || !wish.can.has(Rpc.EXPAND_VOLUME)) return;
    try {
      await plugin.expand(expandRequest(persistent, wish, place), this.#closing.signal);
    } catch (thrown) {
      // It cannot grow while it is in use: as with a kubelet, it is had as it is.
      if (thrown instanceof ConnectError && thrown.code === Code.FailedPrecondition) return;
      throw notReady(wish.volume, thrown, "expand");
    }
    holder.showSize({ driver: wish.volume.driver, volume: persistent.volume }, persistent.size_bytes);
  }

  async grow(holder: CsiHolder, growth: CsiGrowth, signal: AbortSignal): Promise<void> {
    const { volume, at } = growingVolume(holder, growth);
    const grow = async () => {
      try {
        await this.#inTurns(at, () => growVolume(holder, growth, { ...this.#options, signal: this.#closing.signal }));
      } catch (thrown) {
        throw notGrown(volume, thrown);
      }
    };
    const key = JSON.stringify([holder.id, growth.driver, growth.volume, growth.size_bytes]);
    const what = `growth of volume ${growth.volume} by the CSI driver ${growth.driver}`;
    await this.#growing.do(key, what, grow, signal);
  }

  #writeDown({ id, spec }: CsiHolder, { name, driver, persistent }: CsiVolume, at: PublishedVolume): void {
    const folder = this.#noteOf(at);
    makeFolder(folder, 0o750);
    const data = {
      ...{ driverName: driver, volumeHandle: volumeIdOf(at), specVolID: persistent?.pv ?? name },
      ...{ volumeLifecycleMode: persistent === undefined ? "Ephemeral" : "Persistent", vmletMachine: id },
      vmletLabels: JSON.stringify(spec.labels),
    };
    writeJson(join(folder, DATA), data, { flush: true });
    // That of a mount is the same, and the driver makes neither.
    makeFolder(dirname(this.#target(at)), 0o750);
  }

  async unpublish(holder: CsiHolder, signal: AbortSignal): Promise<void> {
    let failed: Error | undefined;
    for (const [name, at] of Object.entries(holder.published ?? {})) {
      let step: Step = "letGo";
      const { root = this.#options.root } = at;
      const unpublish = async () => {
        await this.#letGo(holder.id, at);
        step = "unpublish";
        await this.#unpublishOne(at, volumeIdOf(at));
        step = "unstage";
        await this.#unstageUnused(holder.id, at);
        clearTarget(root, at);
        // In the same turn: who comes next sees that this one has it no more.
        const { [name]: _gone, ...left } = holder.published ?? {};
        holder.keep(Object.keys(left).length > 0 ? left : undefined);
      };
      try {
        await unlessAborted(this.#inTurns(at, unpublish), signal);
      } catch (thrown) {
        signal.throwIfAborted();
        // One driver keeps no other's.
        failed ??= notTakenBack(name, thrown, { step, isBlock: isDevice(at) });
      }
    }
    if (failed !== undefined) throw failed;
  }

  leave(holder: CsiHolder): void {
    const { published } = holder;
    if (published === undefined) return;
    const left = Object.entries(published).filter(([, { volume }]) => volume !== undefined);
    if (left.length === Object.keys(published).length) return;
    holder.keep(left.length > 0 ? Object.fromEntries(left) : undefined);
  }

  /** Before its driver is asked: what is held open cannot be taken away. */
  async #letGo(id: string, at: PublishedVolume): Promise<void> {
    if (!isDevice(at)) return;
    const others = this.#sharers(id, at).map((each) => this.#target(each));
    await this.#options.devices.letGo(this.#target(at), others);
  }

  /** What is written down of it stays until it is unstaged. @throws what the driver, or the system, says */
  async #unpublishOne(at: PublishedVolume, volumeId: string): Promise<void> {
    if (lstatSync(this.#noteOf(at), { throwIfNoEntry: false }) === undefined) return;
    const targetPath = this.#target(at);
    await this.#options.drivers.plugin(at.driver).unpublish({ volumeId, targetPath }, this.#closing.signal);
    removeTarget(targetPath);
  }

  async #unstageUnused(id: string, at: PublishedVolume): Promise<void> {
    const { driver, volume, root = this.#options.root } = at;
    if (volume === undefined || this.#sharers(id, at).length > 0) return;
    await this.#unstage({ driver, volume, isBlock: isDevice(at) }, root);
  }

  async #unstage(key: VolumeKey, root: string): Promise<void> {
    const { drivers } = this.#options;
    await this.#staging.unstage(key, root, () => drivers.plugin(key.driver), this.#closing.signal);
  }

  #target({ root = this.#options.root, path }: PublishedVolume): string {
    return join(root, path);
  }

  #noteOf({ root = this.#options.root, path }: PublishedVolume): string {
    return join(root, noteFolder({ path }));
  }

  /** What the other machines have. */
  #others(id: string): PublishedVolume[] {
    return [...this.#options.holders()]
      .filter((each) => each.id !== id)
      .flatMap(({ published = {} }: { published?: PublishedVolumes | undefined }) => Object.values(published));
  }

  /** What other machines have of the same volume, as this one has it. */
  #sharers(id: string, at: Pick<PublishedVolume, "driver" | "volume" | "path">): PublishedVolume[] {
    const { driver, volume } = at;
    if (volume === undefined) return [];
    return this.#others(id).filter(
      (each) => each.driver === driver && each.volume === volume && isDevice(each) === isDevice(at),
    );
  }

  /**
   * What is written down beside the volumes of a machine of which all else is lost. Undefined: none of it has been
   * asked for.
   */
  lastKnown(machine: string): { labels: Readonly<Record<string, string>>; published: PublishedVolumes } | undefined {
    const own = [false, true]
      .flatMap((isBlock) => this.#written(isBlock))
      .filter(({ data }) => data.machine === machine);
    if (own[0] === undefined) return undefined;
    const published = own.map(({ path, data: { driver, key } }) => [
      basename(noteFolder({ path })),
      { driver, path, ...(key !== undefined && { volume: key.volume }) },
    ]);
    return { labels: own[0].data.labels, published: Object.fromEntries(published) as PublishedVolumes };
  }

  // --- for nobody ---

  /** Has taken back what no machine has, until the signal aborts. */
  async run(signal: AbortSignal): Promise<void> {
    const { clock, logger, drivers } = this.#options;
    while (!signal.aborted) {
      try {
        const byDriver = Map.groupBy(this.#leftovers(), ({ driver }) => driver);
        // One driver that is silent keeps no other's.
        const work = [...byDriver].map(([driver, leftovers]) => this.#takeAllBack(driver, leftovers));
        await unlessAborted(Promise.all(work), signal);
      } catch (thrown) {
        if (!signal.aborted) logger.warn({ err: thrown }, "Volumes that no machine has cannot be looked for");
      }
      await drivers.registered.waitAtMost(clock, LOOK_MS, signal);
    }
  }

  async #takeAllBack(driver: string, leftovers: readonly Leftover[]): Promise<void> {
    const { logger } = this.#options;
    try {
      for (const leftover of leftovers) {
        if ("path" in leftover) await this.#takeBack(leftover.path);
        else await this.#unstageLeft(leftover.staged);
      }
      logger.info({ driver, volumes: leftovers.length }, "Volumes that no machine has are taken back");
    } catch (thrown) {
      logger.warn({ driver, err: thrown }, "A volume that no machine has is not taken back yet");
    }
  }

  async #takeBack(path: string): Promise<void> {
    const { root } = this.#options;
    const note = join(root, noteFolder({ path }));
    const place = { ...dataOf(note)?.key, path };
    await this.#inTurns(place, async () => {
      const data = dataOf(note);
      if (data === undefined || this.#others("").some((each) => each.path === path)) return;
      const { driver, volumeId, key } = data;
      const at = { driver, path, ...(key !== undefined && { volume: key.volume }) };
      await this.#letGo("", at);
      await this.#unpublishOne(at, volumeId);
      clearTarget(root, at);
    });
  }

  async #unstageLeft(key: VolumeKey): Promise<void> {
    await this.#inTurn(keyOf(key), async () => {
      const isThere = this.#written(key.isBlock).some(({ data }) => isOf(data.key, key));
      const isHad = this.#others("").some((each) => isOf(keyOfPublished(each), key));
      if (!isThere && !isHad) await this.#unstage(key, this.#options.root);
    });
  }

  /** Mounts first: what is staged for one that is not taken back yet stays. */
  #leftovers(): Leftover[] {
    const others = this.#others("");
    const had = new Set(others.map(({ path }) => path));
    const mounted = [false, true].flatMap((isBlock) => this.#written(isBlock)).filter(({ path }) => !had.has(path));
    const staged = this.#staging
      .known(this.#options.root)
      .filter((key) => !others.some((each) => isOf(keyOfPublished(each), key)));
    return [
      ...mounted.map(({ path, data: { driver } }) => ({ driver, path })),
      ...staged.map((key) => ({ driver: key.driver, staged: key })),
    ];
  }

  /** All that is written down of mounts, or of devices, whosever they are. */
  #written(isBlock: boolean): { path: string; data: VolumeData }[] {
    const { root } = this.#options;
    const notes = isBlock ? DEVICE_NOTES : MOUNT_NOTES;
    return foldersIn(join(root, "pods")).flatMap((pod) =>
      foldersIn(join(root, "pods", pod, notes)).flatMap((pv) => {
        const data = dataOf(join(root, "pods", pod, notes, pv));
        if (data === undefined) return [];
        const key = data.key && { ...data.key, isBlock };
        return [{ path: publishedAt(pod, { pv, isBlock }), data: { ...data, ...(key !== undefined && { key }) } }];
      }),
    );
  }

  /** Of the volume where it is shared, and of the place. */
  async #inTurns<T>(
    { driver, volume, path }: { driver?: string; volume?: string; path: string },
    work: () => Promise<T>,
  ): Promise<T> {
    if (driver === undefined || volume === undefined) return await this.#inTurn(path, work);
    return await this.#inTurn(keyOf({ driver, volume }), () => this.#inTurn(path, work));
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

/** What lies there of no machine: mounted for one, or staged. */
type Leftover = { driver: string } & ({ path: string } | { staged: VolumeKey });

const wordOf = (isBlock: boolean): string => (isBlock ? "a block device" : "a file system");

/** Of one that outlives machines. */
function keyOfPublished(at: PublishedVolume): VolumeKey | undefined {
  return at.volume === undefined ? undefined : { driver: at.driver, volume: at.volume, isBlock: isDevice(at) };
}

const isOf = (one: VolumeKey | undefined, other: VolumeKey): boolean =>
  one !== undefined && keyOf(one) === keyOf(other) && one.isBlock === other.isBlock;

/** Undefined for what is none, or not there any more. */
function numbersAt(devices: BlockDevices, path: string): string | undefined {
  try {
    return devices.numbers(path);
  } catch {
    return undefined;
  }
}

/** Undefined for what is not ours. */
function dataOf(folder: string): VolumeData | undefined {
  const { driverName: driver, volumeHandle: volumeId, vmletMachine: machine, ...more } = readData(folder);
  if (driver === undefined || volumeId === undefined || machine === undefined) return undefined;
  const isPersistent = more["volumeLifecycleMode"] === "Persistent";
  // An earlier version has written none.
  const labels = textsOf(more["vmletLabels"] ?? "");
  return {
    driver,
    volumeId,
    machine,
    labels,
    ...(isPersistent && { key: { driver, volume: volumeId, isBlock: false } }),
  };
}
