/**
 * The backends whose volumes the driver has: one, or several, each of a zone of its own, as hosts with their own disks.
 * Of several, a volume's id says in which zone it is, so each call goes to one backend alone: one that does not answer
 * keeps nobody from the others' volumes, and no volume is ever taken for another backend's of the same name.
 */
import { Code, ConnectError } from "@connectrpc/connect";
import { ZONE_KEY } from "../provider/csi-names.ts";
import type { Provider, ProviderInfo } from "../provider/provider.ts";
import type { PersistentVolume, VolumeProvider } from "../provider/volume.ts";
import type { TopologyRequirement } from "./api.gen.js";
import { orAbsent } from "./errors.ts";
import { isVolumeId, zoneTag, zoneTagOf } from "./volume-ids.ts";

export interface Backend {
  readonly provider: Provider;
  readonly volumes: VolumeProvider;
}

export interface FoundVolume {
  readonly volume: PersistentVolume;
  readonly backend: Backend;
}

/** Of one that was asked, and is not the one that is looked for. */
const NOT_HERE = new Error("not here");

export class Backends {
  readonly #all: readonly [Backend, ...Backend[]];
  /** What each has said last; of those that have not answered yet, nothing. */
  readonly #infos = new Map<Backend, ProviderInfo>();

  /** @throws Error for one that has no volumes */
  constructor(providers: readonly [Provider, ...Provider[]]) {
    const [first, ...rest] = providers;
    this.#all = [backendOf(first), ...rest.map(backendOf)];
  }

  /** The only one; undefined of several. */
  get only(): Backend | undefined {
    return this.#all.length === 1 ? this.#all[0] : undefined;
  }

  async info(backend: Backend, signal: AbortSignal): Promise<ProviderInfo> {
    const info = await backend.provider.getInfo({ signal });
    this.#infos.set(backend, info);
    return info;
  }

  /** What some of those can that have answered: one that cannot refuses by itself. @throws when none answers */
  async capabilities(signal: AbortSignal): Promise<ReadonlySet<string>> {
    await this.#anyAnswer(signal);
    return new Set([...this.#infos.values()].flatMap(({ capabilities }) => capabilities));
  }

  /** Whether where a volume is restricts who may have it. */
  async hasZones(signal: AbortSignal): Promise<boolean> {
    return this.only === undefined || (await this.info(this.only, signal)).zone !== undefined;
  }

  /**
   * In a few words; undefined while at least one answers and has volumes, and no two could be taken for each other.
   * @throws when none answers
   */
  async whyNotReady(signal: AbortSignal): Promise<string | undefined> {
    await this.#anyAnswer(signal);
    const infos = [...this.#infos.values()];
    if (infos.some(({ capabilities }) => !capabilities.includes("volumes.persistent")))
      return `${this.only === undefined ? "a" : "the"} backend lacks the capability volumes.persistent`;
    return this.#zoneFault();
  }

  /** Who takes long to answer keeps nobody waiting. */
  async #anyAnswer(signal: AbortSignal): Promise<void> {
    try {
      await Promise.any(this.#all.map((each) => this.info(each, signal)));
    } catch (thrown) {
      throw (thrown as AggregateError).errors[0];
    }
  }

  /** Of what is known of them. */
  #zoneFault(): string | undefined {
    if (this.only !== undefined) return undefined;
    const zones = [...this.#infos.values()].map(({ zone }) => zone);
    if (zones.includes(undefined))
      return "a backend has no zone: of several, each says in its configuration (zone) where its volumes are";
    const tags = zones.map((zone) => zoneTag(zone!));
    const twice = zones.find((_zone, index) => tags.indexOf(tags[index]!) !== index);
    return twice === undefined
      ? undefined
      : `two backends say that they are zone ${twice}: nobody could tell their volumes apart`;
  }

  /**
   * The backend of a new volume: that of the first zone that the requirement prefers. No other is tried in its place,
   * for the first may have made the volume though nobody heard of it.
   * @throws ConnectError when it does not answer, or there is none
   */
  async ofRequirement(requirement: TopologyRequirement | undefined, signal: AbortSignal): Promise<Backend> {
    if (this.only !== undefined) return this.only;
    const wanted = [...(requirement?.preferred ?? []), ...(requirement?.requisite ?? [])];
    const zones = [...new Set(wanted.flatMap(({ segments }) => segments[ZONE_KEY] ?? []))];
    if (zones.length === 0)
      throw new ConnectError(
        "nothing says in which zone the volume is to be, and each backend is one: the nodes' CSINode has no zone yet, or csi-provisioner does not tell",
        Code.ResourceExhausted,
      );
    for (const zone of zones) {
      const found = await this.#ofTag(zoneTag(zone), signal);
      if (found !== undefined) return found;
    }
    throw new ConnectError(`no backend is in zone ${zones.join(" or ")}`, Code.ResourceExhausted);
  }

  /** Undefined for a zone that is nobody's. @throws ConnectError when that is not known */
  async ofZone(zone: string, signal: AbortSignal): Promise<Backend | undefined> {
    return this.only ?? (await this.#ofTag(zoneTag(zone), signal));
  }

  /**
   * One volume, with its backend; undefined when there is none.
   * @throws ConnectError, ProviderError when that is not known
   */
  async find(id: string, signal: AbortSignal): Promise<FoundVolume | undefined> {
    if (!isVolumeId(id)) return undefined;
    const tag = zoneTagOf(id);
    if (tag === undefined) return await this.#findAnywhere(id, signal);
    const backend = await this.#ofTag(tag, signal);
    if (backend === undefined)
      throw new ConnectError(
        `volume ${id} is in a zone of which no backend is: one was taken out of the driver's configuration, or its zone has another name now`,
        Code.Unavailable,
      );
    const volume = await orAbsent(backend.volumes.get(id, { signal }));
    return volume && { volume, backend };
  }

  /** One that was made while there was one backend. */
  async #findAnywhere(id: string, signal: AbortSignal) {
    const stop = new AbortController();
    const either = AbortSignal.any([signal, stop.signal]);
    try {
      return await firstOf(
        this.#all.map(async (backend) => {
          const volume = await orAbsent(backend.volumes.get(id, { signal: either }));
          return volume && { volume, backend };
        }),
      );
    } finally {
      stop.abort();
    }
  }

  /** Of all. @throws when one does not answer: who reads a list takes what is not in it for gone */
  async list(labels: Readonly<Record<string, string>>, signal: AbortSignal): Promise<PersistentVolume[]> {
    const lists = await Promise.all(this.#all.map(({ volumes }) => volumes.list({ signal, labels })));
    return lists.flatMap(({ items }) => items);
  }

  /** Of a new volume. @throws ConnectError for one of several that has no zone any more */
  tagOf({ zone }: ProviderInfo): string | undefined {
    if (this.only !== undefined) return undefined;
    if (zone !== undefined) return zoneTag(zone);
    throw new ConnectError("the backend has no zone any more", Code.Unavailable);
  }

  /** Undefined when all have answered, and none is it. @throws when that is not known */
  async #ofTag(tag: string, signal: AbortSignal): Promise<Backend | undefined> {
    const isIt = (backend: Backend) => {
      const zone = this.#infos.get(backend)?.zone;
      return zone !== undefined && zoneTag(zone) === tag;
    };
    if (!this.#all.some(isIt)) await this.#askUntil(isIt, signal);
    const [found, other] = this.#all.filter(isIt);
    if (other !== undefined)
      throw new ConnectError(this.#zoneFault() ?? `two backends are zone ${tag}`, Code.Unavailable);
    return found;
  }

  /** Asks all, until one answers that is it. @throws when none does, and one has not answered */
  async #askUntil(isIt: (backend: Backend) => boolean, signal: AbortSignal): Promise<void> {
    await firstOf(
      this.#all.map(async (backend) => {
        await this.info(backend, signal);
        return isIt(backend) ? backend : undefined;
      }),
    );
  }
}

/** The first that is not undefined; undefined when all are. @throws when there is none, and one of them has failed */
async function firstOf<T>(answers: readonly Promise<T | undefined>[]): Promise<T | undefined> {
  try {
    return await Promise.any(
      answers.map(async (answer) => {
        const found = await answer;
        if (found === undefined) throw NOT_HERE;
        return found;
      }),
    );
  } catch (thrown) {
    const failure: unknown = (thrown as AggregateError).errors.find((each) => each !== NOT_HERE);
    if (failure !== undefined) throw failure;
    return undefined;
  }
}

/** @throws Error for a backend that has none */
function backendOf(provider: Provider): Backend {
  if (provider.volumes === undefined) throw new Error("the backend has no volumes that outlive machines");
  return { provider, volumes: provider.volumes };
}
