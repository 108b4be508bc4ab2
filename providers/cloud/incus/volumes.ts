/**
 * Custom volumes of an Incus project, of the pools that are configured. A pool of a driver that has its disks on each
 * member for itself is that of one member here: its volumes are there, and so are the instances that have them. Of a
 * pool that all members reach, a volume goes where its instance goes.
 *
 * Incus shows a volume while it is being copied as if it were whole. That it is, a key of its configuration says, which
 * is written when all else has succeeded.
 */
import { type CallOptions, ProviderError, type VolumeClass } from "../../../src/provider/kit/index.ts";
import type { AttachedVolume, CloudVolume, CloudVolumeRequest, CloudVolumes, VolumeRef } from "../cloud.ts";
import { GUEST_VOLUMES } from "../guest-files.ts";
import { type IncusClient, type IncusReply, namedIn } from "./client.ts";

export interface IncusVolumesOptions {
  readonly pools: readonly string[];
  /** Whose these pools are. Absent: every member's, or there is one host. */
  readonly member?: string | undefined;
}

interface Custom {
  readonly name: string;
  readonly config?: Readonly<Record<string, string>> | null;
  /** Paths of what has it, instances among it. */
  readonly used_by?: readonly string[] | null;
}

export type Devices = Readonly<Record<string, Readonly<Record<string, string>>>>;

const LABEL = "user.";
const READY = "user.vmlet-ready";
const OURS = /^vmlet-[a-z0-9]+$/;
/** A little less than a call may take. */
const WAIT_SECONDS = 15;
/** Drivers of pools that copy a volume by a snapshot of it; so does LVM's where it has a thin pool. */
const BY_SNAPSHOT = ["btrfs", "ceph", "zfs"];
/** Of Incus's numbers of status. */
const [DONE, FAILED] = [200, 400];

export class IncusVolumes implements CloudVolumes {
  readonly zone: string | undefined;
  readonly classes: readonly VolumeClass[];
  readonly #client: IncusClient;
  /** Names of those that this process waits for. */
  readonly #copying = new Set<string>();

  constructor(client: IncusClient, { pools, member }: IncusVolumesOptions) {
    this.#client = client;
    this.zone = member;
    this.classes = pools.map((name) => ({ name, sharing: "one", modes: ["filesystem"] }));
  }

  async create(request: CloudVolumeRequest, options: CallOptions): Promise<void> {
    const { name, class: pool, sizeBytes, labels, source } = request;
    const config: Record<string, string> = { size: String(sizeBytes) };
    for (const [key, value] of Object.entries(labels)) config[LABEL + key] = value;
    // Its source's own word that it is whole is not the copy's.
    config[READY] = "no";
    const from = source && { type: "copy", name: source.name, pool: source.class, volume_only: true };
    const body = { name, type: "custom", content_type: "filesystem", config, ...(from && { source: from }) };
    const path = pathOf(pool);
    const asked = { method: "POST", path, query: this.#query, body, ...options } as const;
    const made = await this.#client.carryOut(asked, WAIT_SECONDS);
    if (made.error !== undefined) throw refused(made);
    if (made.isOver) await this.#set({ name, class: pool }, { [READY]: "yes" }, options);
    else void this.#awaitCopy({ name, class: pool }, (made.metadata as { id?: string }).id ?? "");
  }

  /**
   * Whatever becomes of the call: a large one takes minutes. When this process is gone before the copy is made, nobody
   * knows that it is whole, and it is made again.
   */
  async #awaitCopy(volume: VolumeRef, operation: string): Promise<void> {
    const { signal } = new AbortController();
    const query = { timeout: String(WAIT_SECONDS) };
    this.#copying.add(volume.name);
    try {
      for (;;) {
        const waited = await this.#client.ask({ method: "GET", path: `operations/${operation}/wait`, query, signal });
        const { status_code: status = 0 } = (waited.metadata ?? {}) as { status_code?: number };
        if (waited.error !== undefined || status >= FAILED) return;
        if (status >= DONE) return await this.#set(volume, { [READY]: "yes" }, { signal });
      }
    } catch {
      // That it is not whole is what is said of it from here on.
    } finally {
      this.#copying.delete(volume.name);
    }
  }

  async get(volume: VolumeRef, options: CallOptions): Promise<CloudVolume> {
    const found = await this.#custom(volume, options);
    if (found === undefined) throw new ProviderError("not_found", `there is no volume ${volume.name}`);
    const told = volumeOf(found, volume.class);
    return told.state === "ready" || !(await this.#isBeingMade(volume, options)) ? told : { ...told, state: "making" };
  }

  async list([key, value]: readonly [string, string], { signal }: CallOptions): Promise<CloudVolume[]> {
    const query = { ...this.#query, recursion: "1" };
    const lists = this.classes.map(async ({ name: pool }) => {
      const reply = await this.#client.ask({ method: "GET", path: pathOf(pool), query, signal });
      if (reply.error !== undefined) throw unknown(reply);
      return namedIn<Custom>(reply.metadata)
        .filter(({ config }) => config?.[LABEL + key] === value)
        .map((each) => volumeOf(each, pool));
    });
    return (await Promise.all(lists)).flat();
  }

  async grow(volume: VolumeRef, sizeBytes: number, options: CallOptions): Promise<void> {
    await this.#set(volume, { size: String(sizeBytes) }, options);
  }

  async delete(volume: VolumeRef, options: CallOptions): Promise<void> {
    const path = pathOf(volume.class, volume.name);
    const deleted = await this.#client.carryOut(
      { method: "DELETE", path, query: this.#query, ...options },
      WAIT_SECONDS,
    );
    if (deleted.error !== undefined && !isAbsent(deleted)) throw refused(deleted);
  }

  /** A device of type `none` is none, and needs no word on the others. */
  async detach(vm: string, volume: string, options: CallOptions): Promise<void> {
    const body = { devices: { [volume]: { type: "none" } } };
    const asked = { method: "PATCH", path: `instances/${vm}`, body, ...options } as const;
    const { error } = await this.#client.carryOut(asked, WAIT_SECONDS);
    if (error !== undefined) throw new ProviderError("unavailable", `Incus: ${error}`);
  }

  async copiesInUse(pool: string, { signal }: CallOptions): Promise<boolean> {
    const path = `storage-pools/${encodeURIComponent(pool)}`;
    const reply = await this.#client.ask({ method: "GET", path, query: this.#query, signal });
    if (reply.error !== undefined) throw unknown(reply);
    const { driver = "", config } = (reply.metadata ?? {}) as { driver?: string; config?: Record<string, string> };
    return BY_SNAPSHOT.includes(driver) || (driver === "lvm" && config?.["lvm.thinpool_name"] !== undefined);
  }

  async room(pool: string, { signal }: CallOptions): Promise<number | undefined> {
    const path = `storage-pools/${encodeURIComponent(pool)}/resources`;
    const reply = await this.#client.ask({ method: "GET", path, query: this.#query, signal });
    if (reply.error !== undefined) throw unknown(reply);
    const { total, used = 0 } = ((reply.metadata ?? {}) as { space?: { total?: number; used?: number } }).space ?? {};
    return total === undefined || total === 0 ? undefined : Math.max(0, total - used);
  }

  /**
   * What an instance gets them by.
   * @throws ProviderError unavailable while another instance has one: in that nothing runs, and it is removed; or it is
   *   nobody's of ours, and then it is for its owner to give the volume back
   */
  async devicesOf(instance: string, volumes: readonly AttachedVolume[], options: CallOptions): Promise<Devices> {
    const devices: Record<string, Record<string, string>> = {};
    for (const { name, class: pool, readOnly } of volumes) {
      const found = await this.#custom({ name, class: pool }, options);
      if (found === undefined) throw new ProviderError("unavailable", `pool ${pool} has no volume ${name} any more`);
      const others = (found.used_by ?? []).filter((path) => !path.split("?", 1)[0]!.endsWith(`/instances/${instance}`));
      if (others.length > 0)
        throw new ProviderError("unavailable", `volume ${name} of pool ${pool} is attached to ${others.join(", ")}`);
      const path = `${GUEST_VOLUMES}/${name}`;
      devices[name] = { type: "disk", pool, source: name, path, ...(readOnly && { readonly: "true" }) };
    }
    return devices;
  }

  get #query(): Readonly<Record<string, string>> {
    return this.zone === undefined ? {} : { target: this.zone };
  }

  async #set(volume: VolumeRef, config: Readonly<Record<string, string>>, options: CallOptions): Promise<void> {
    const path = pathOf(volume.class, volume.name);
    const asked = { method: "PATCH", path, query: this.#query, body: { config }, ...options } as const;
    const changed = await this.#client.carryOut(asked, WAIT_SECONDS);
    if (changed.error !== undefined) throw refused(changed);
  }

  /** Undefined when there certainly is none. */
  async #custom({ name, class: pool }: VolumeRef, { signal }: CallOptions): Promise<Custom | undefined> {
    const path = pathOf(pool, name);
    const reply = await this.#client.ask({ method: "GET", path, query: this.#query, signal });
    if (reply.error === undefined) return reply.metadata as Custom;
    if (isAbsent(reply)) return undefined;
    throw unknown(reply);
  }

  /** Operations name what they make only by words: any that copies may be this one's. */
  async #isBeingMade({ name }: VolumeRef, { signal }: CallOptions): Promise<boolean> {
    if (this.#copying.has(name)) return true;
    const query = { recursion: "1" };
    const reply = await this.#client.ask({ method: "GET", path: "operations", query, signal });
    if (reply.error !== undefined) throw unknown(reply);
    const running = Object.entries((reply.metadata ?? {}) as Record<string, unknown[] | undefined>)
      .filter(([status]) => ["running", "pending"].includes(status.toLowerCase()))
      .flatMap(([, operations]) => operations ?? []);
    return running.some((each) => /cop(y|ying) storage volume/i.test(JSON.stringify(each)) || says(each, name));
  }
}

const says = (operation: unknown, name: string): boolean => JSON.stringify(operation).includes(name);

const pathOf = (pool: string, name?: string): string =>
  `storage-pools/${encodeURIComponent(pool)}/volumes/custom${name === undefined ? "" : `/${name}`}`;

function volumeOf({ name, config }: Custom, pool: string): CloudVolume {
  const labels = Object.entries(config ?? {}).flatMap(([key, value]) =>
    key.startsWith(`${LABEL}vmlet-`) && key !== READY ? [[key.slice(LABEL.length), value] as const] : [],
  );
  return {
    name,
    class: pool,
    labels: Object.fromEntries(labels),
    sizeBytes: Number(config?.["size"] ?? 0),
    state: config?.[READY] === "yes" ? "ready" : "broken",
  };
}

/** Of the devices of an instance. */
export const volumesOf = (devices: Devices | null | undefined): string[] =>
  Object.entries(devices ?? {}).flatMap(([name, { type, source = "" }]) =>
    type === "disk" && OURS.test(source) ? [name] : [],
  );

function refused(reply: IncusReply): ProviderError {
  const { status, error = "" } = reply;
  if (status === 409 || /already exists/i.test(error)) return new ProviderError("conflict", `Incus: ${error}`);
  if (/still in use|in use|busy/i.test(error)) return new ProviderError("in_use", `Incus: ${error}`);
  if (/exceed|not enough|no space|insufficient|quota|reached maximum/i.test(error))
    return new ProviderError("quota", `Incus: ${error}`);
  return unknown(reply);
}

const isAbsent = ({ status, error }: IncusReply): boolean =>
  status === 404 && /storage (pool )?volume not found/i.test(error ?? "");
const unknown = ({ status, error }: IncusReply) =>
  new ProviderError(status === 403 ? "unauthorized" : "unavailable", `Incus: ${error} (${status})`);
