/** The Machine API's volumes as a VolumeProvider, with the same rules of trust as for machines. */
import {
  type CallOptions,
  type PersistentVolume,
  type PersistentVolumeList,
  type PersistentVolumeSpec,
  type ReservationOptions,
  ProviderError,
  type VolumeCapacity,
  type VolumeProvider,
} from "../../src/provider/kit/index.ts";
import { violation } from "../../src/provider/contract/document.ts";
import { type Call, labelQuery, volumePath } from "./call.ts";
import type { MachineApiClient } from "./client.ts";
import type { Judge, JudgedVolume } from "./judge.ts";
import { tryParse, type Parsed } from "./json.ts";
import { readItems } from "./lists.ts";
import type { HttpVmLimits } from "./options.ts";
import { requireValid } from "./validate.ts";

const reservationPath = (id: string, name: string): string =>
  `${volumePath(id)}/reservations/${encodeURIComponent(name)}`;

export class HttpVmVolumes implements VolumeProvider {
  readonly #client: MachineApiClient;
  readonly #judge: Judge;
  readonly #limits: HttpVmLimits;

  constructor(client: MachineApiClient, judge: Judge, limits: HttpVmLimits) {
    this.#client = client;
    this.#judge = judge;
    this.#limits = limits;
  }

  async create(id: string, spec: PersistentVolumeSpec, { signal }: CallOptions): Promise<PersistentVolume> {
    requireValid(violation("request", "PersistentVolumeSpec", spec));
    return await this.#volume(id, { method: "PUT", path: volumePath(id), body: spec, signal });
  }

  get(id: string, { signal }: CallOptions): Promise<PersistentVolume> {
    return this.#volume(id, { method: "GET", path: volumePath(id), signal });
  }

  async list({
    labels,
    includeDeleted,
    signal,
  }: CallOptions & {
    labels: Record<string, string>;
    includeDeleted?: boolean | undefined;
  }): Promise<PersistentVolumeList> {
    const judged = new Map<string, JudgedVolume>();
    const cursors = new Set<string>();
    for (let cursor: string | undefined; ;) {
      const query = labelQuery(labels);
      query.set("limit", String(this.#limits.pageItems));
      if (includeDeleted === true) query.set("include_deleted", "true");
      if (cursor !== undefined) query.set("cursor", cursor);
      const call: Call = { method: "GET", path: "/v1/volumes", query, signal };
      const page = await readItems(this.#client, this.#judge, call, "PersistentVolumePage");
      for (const item of page.items) this.#collect(item, labels, judged);
      if (judged.size > this.#limits.listItems)
        throw this.#judge.refuse("size", `the list has ${judged.size} volumes, and goes on`);
      cursor = page.next_cursor;
      if (cursor === undefined) break;
      if (cursors.has(cursor) || page.items.length === 0)
        throw this.#judge.refuse("cursor_loop", "the list's pages go in a circle, or on without end");
      cursors.add(cursor);
    }
    const all = [...judged.values()];
    const unknown = all.flatMap((each) => each.unknown ?? []);
    return { items: all.flatMap(({ volume }) => volume ?? []), ...(unknown.length > 0 && { unknown }) };
  }

  /** When a volume is listed twice, neither of the two can be believed. */
  #collect(item: Parsed, labels: Record<string, string>, into: Map<string, JudgedVolume>): void {
    const judged = this.#judge.volume(item, labels);
    if (judged === undefined) return;
    const { id } = judged.volume ?? judged.unknown;
    if (!into.has(id)) return void into.set(id, judged);
    this.#client.countInvalid("duplicate_id");
    into.set(id, { unknown: { id, reason: "the list has it twice" } });
  }

  async resize(id: string, sizeBytes: number, { signal }: CallOptions): Promise<PersistentVolume> {
    const body = { size_bytes: sizeBytes };
    requireValid(violation("request", "PersistentVolumePatch", body));
    return await this.#volume(id, { method: "PATCH", path: volumePath(id), body, signal });
  }

  async delete(id: string, { signal }: CallOptions): Promise<void> {
    await this.#client.accepted({ method: "DELETE", path: volumePath(id), signal });
  }

  reserve(
    id: string,
    name: string,
    { signal, readOnly, exclusive }: CallOptions & ReservationOptions,
  ): Promise<PersistentVolume> {
    const body = {
      ...(readOnly !== undefined && { read_only: readOnly }),
      ...(exclusive !== undefined && { exclusive }),
    };
    return this.#volume(id, { method: "PUT", path: reservationPath(id, name), body, signal });
  }

  async release(
    id: string,
    name: string,
    { signal, force }: CallOptions & { force?: boolean | undefined },
  ): Promise<void> {
    const query = force === true ? new URLSearchParams({ force: "true" }) : undefined;
    await this.#client.accepted({ method: "DELETE", path: reservationPath(id, name), query, signal });
  }

  async getCapacity({
    signal,
    class: named,
    zone,
  }: CallOptions & { class?: string | undefined; zone?: string | undefined }): Promise<VolumeCapacity> {
    const query = new URLSearchParams();
    if (named !== undefined) query.set("class", named);
    if (zone !== undefined) query.set("zone", zone);
    return await this.#client.json({ method: "GET", path: "/v1/volume-capacity", query, signal }, "VolumeCapacity");
  }

  /** The volume that a call is about, as its reply has it. */
  async #volume(id: string, call: Call): Promise<PersistentVolume> {
    const { volume, unknown } = this.#judge.volume(tryParse(await this.#client.text(call, "single")), {}) ?? {};
    const named = volume?.id ?? unknown?.id ?? id;
    if (named !== id) throw this.#judge.refuse("machine_id", `the reply is about volume ${named}, not ${id}`);
    if (volume !== undefined) return volume;
    throw new ProviderError("unavailable", `invalid reply: ${unknown?.reason ?? "the reply is not a volume"}`);
  }
}
