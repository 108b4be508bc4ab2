/**
 * What CSI drivers say of how full machines' volumes are (NodeGetVolumeStats; kubelet: csi_metrics). As in a kubelet, a
 * driver is asked in the background and not too often: who wants samples gets what it said last, and waits for no
 * driver.
 */
import { join } from "node:path";
import type { Clock, MachineStats } from "../../../src/provider/kit/index.ts";
import {
  type NodeGetVolumeStatsResponse,
  NodeServiceCapability_RPC_Type as Rpc,
  VolumeUsage_Unit as Unit,
} from "../../../src/csi/api.gen.js";
import { type PublishedVolume, type PublishedVolumes, volumeIdOf } from "../csi-volumes.ts";
import type { CsiPlugin } from "./csi-plugin.ts";

type VolumeSample = NonNullable<MachineStats["volumes"]>[number];

/** kubelet: volumeStatsAggPeriod. */
const EVERY_MS = 60_000;

interface Holder {
  readonly id: string;
  readonly record: { readonly published?: PublishedVolumes | undefined };
}

interface Asked {
  /** On the monotonic clock. */
  at: number;
  isUnderWay: boolean;
  said: Omit<VolumeSample, "name"> | undefined;
}

interface CsiStatsOptions {
  drivers: { plugin(driver: string): CsiPlugin };
  clock: Clock;
  /** Which of the machines are there: nothing is kept of others. */
  isThere: (machine: string) => boolean;
}

export class CsiStats {
  readonly #options: CsiStatsOptions;
  readonly #machines = new Map<string, Map<string, Asked>>();
  readonly #closing = new AbortController();

  constructor(options: CsiStatsOptions) {
    this.#options = options;
  }

  close(): void {
    this.#closing.abort(new Error("the backend is stopping"));
  }

  /** A machine's sample, with what drivers have said of its volumes. */
  async addTo(own: Promise<MachineStats | undefined>, holder: Holder): Promise<MachineStats | undefined> {
    const sample = await own;
    const { published } = holder.record;
    if (published === undefined) this.#machines.delete(holder.id);
    if (sample === undefined || published === undefined) return sample;
    const said = this.#samples(holder.id, published);
    return said.length === 0 ? sample : { ...sample, volumes: [...(sample.volumes ?? []), ...said] };
  }

  #samples(id: string, published: PublishedVolumes): VolumeSample[] {
    for (const machine of this.#machines.keys()) if (!this.#options.isThere(machine)) this.#machines.delete(machine);
    const before = this.#machines.get(id) ?? new Map<string, Asked>();
    const known = new Map(
      Object.entries(published).map(([name, at]) => {
        const asked = before.get(name) ?? { at: -Infinity, isUnderWay: false, said: undefined };
        if (!asked.isUnderWay && this.#options.clock.monotonic() - asked.at >= EVERY_MS) void this.#ask(asked, at);
        return [name, asked] as const;
      }),
    );
    this.#machines.set(id, known);
    return [...known].flatMap(([name, { said }]) => (said === undefined ? [] : [{ name, ...said }]));
  }

  /** Inline volumes are asked about as well, and devices, of which a driver mostly says how large they are alone. */
  async #ask(asked: Asked, at: PublishedVolume): Promise<void> {
    const { driver, root, path } = at;
    const { drivers, clock } = this.#options;
    const { signal } = this.#closing;
    asked.isUnderWay = true;
    try {
      const api = root === undefined ? undefined : drivers.plugin(driver);
      if (api === undefined || !(await api.capabilities(signal)).has(Rpc.GET_VOLUME_STATS)) asked.said = undefined;
      else {
        const place = { volumeId: volumeIdOf(at), volumePath: join(root!, path), stagingTargetPath: "" };
        asked.said = judgeUsage(await api.stats(place, signal));
      }
    } catch {
      // It is away, or does not know: what it said before is no longer so.
      asked.said = undefined;
    } finally {
      asked.isUnderWay = false;
      asked.at = clock.monotonic();
    }
  }
}

/**
 * What cannot be is not told; undefined when that is how much is used.
 * @internal
 */
export function judgeUsage({ usage }: Pick<NodeGetVolumeStatsResponse, "usage">): Asked["said"] {
  const of = (unit: Unit) => usage.findLast((each) => each.unit === unit);
  const [bytes, inodes] = [of(Unit.BYTES), of(Unit.INODES)];
  const used = count(bytes?.used);
  if (used === undefined) return undefined;
  const told = {
    capacity_bytes: count(bytes?.total),
    available_bytes: count(bytes?.available),
    inodes: count(inodes?.total),
    inodes_used: count(inodes?.used),
    inodes_free: count(inodes?.available),
  };
  return { used_bytes: used, ...Object.fromEntries(Object.entries(told).filter(([, value]) => value !== undefined)) };
}

function count(value: bigint | undefined): number | undefined {
  return value !== undefined && value >= 0n && value <= Number.MAX_SAFE_INTEGER ? Number(value) : undefined;
}
