/**
 * An Incus cluster, or one Incus host, as a cloud of VMs: an instance is a VM, a container or a virtual machine as
 * configured, and a project holds them all. What Incus says in words only is never gone by where something hangs on it:
 * it is read back.
 */
import type { Duplex } from "node:stream";
import {
  type CallOptions,
  type Clock,
  ProviderError,
  type ResourceAmounts,
  systemClock,
  unlessAborted,
} from "../../../src/provider/kit/index.ts";
import type { EntryStore, Vm, VmCloud, VmNotice, VmRequest, VmState } from "../cloud.ts";
import { dialAddress } from "../dial-address.ts";
import { KEY_FILE, LEAVE_SECONDS } from "../guest-files.ts";
import { keyFilesOf } from "../guest-keys.ts";
import { BIRTH_LABEL, KEYS_LABEL } from "../labels.ts";
import { namedIn, IncusClient, type IncusReply, type IncusServer } from "./client.ts";
import { ProfileEntries } from "./entries.ts";
import { dialGuest } from "./relay.ts";
import { type Devices, IncusVolumes, type IncusVolumesOptions, volumesOf } from "./volumes.ts";

interface IncusCloudOptions extends IncusServer {
  readonly name?: string | undefined;
  readonly instanceType: "container" | "virtual-machine";
  /** Alias or fingerprint of an image with the guest inside, in the project. */
  readonly image: string;
  readonly storagePool: string;
  readonly network: string;
  /** Further configuration of each instance, by Incus's keys. */
  readonly instanceConfig?: Readonly<Record<string, string>> | undefined;
  /** Absent: there are no volumes that outlive instances. */
  readonly volumes?: IncusVolumesOptions | undefined;
  readonly clock?: Clock | undefined;
}

interface Instance {
  readonly name: string;
  readonly status_code: number;
  readonly location?: string;
  readonly created_at?: string;
  readonly last_used_at?: string;
  /** None of what is in error. */
  readonly config?: Readonly<Record<string, string>> | null;
  readonly devices?: Devices | null;
}

interface Member {
  readonly server_name: string;
  readonly status: string;
}

interface InstanceState {
  readonly network?: Record<string, { addresses?: { family: string; address: string; scope: string }[] }> | null;
}

/** Of Incus's numbers of status. */
const [RUNNING, STOPPED, STOPPING, ABORTING, FREEZING, FROZEN] = [103, 102, 107, 108, 109, 110];
const ERROR = 112;
/** A little less than a call may take. */
const WAIT_SECONDS = 15;
const STOP_SECONDS = 12;
/** It may take longer, and goes on by itself. */
const REMOVAL_SECONDS = 3;
/** A start takes less, from when it is written down until the instance is seen to run. */
const START_MS = 120_000;
/** From when an instance is made until Incus starts it; more where its image is unpacked first, and then it is busy. */
const UNSTARTED_MS = 20_000;
/** So long the state of the cluster's members is believed: one question for all VMs. */
const MEMBERS_MS = 3_000;
/** The interface of the VM on `network`. */
const NIC = "eth0";
const LABEL = "user.";
const TYPE = "user.vmlet-type";
const ZONE = "user.vmlet-zone";

export class IncusCloud implements VmCloud {
  readonly name: string;
  readonly entries: EntryStore;
  readonly volumes: IncusVolumes | undefined;
  readonly #options: IncusCloudOptions;
  readonly #client: IncusClient;
  readonly #clock: Clock;
  /** As of `at`, monotonic. */
  #evacuated: { readonly at: number; readonly names: ReadonlySet<string> } | undefined;
  /** Instances whose members are silent, by name, likewise. */
  #unseen: { readonly at: number; readonly listing: Promise<ReadonlyMap<string, Instance>> } | undefined;

  /** @throws ConfigError when a file cannot be read */
  constructor(options: IncusCloudOptions) {
    this.name = options.name ?? "incus";
    this.#options = options;
    this.#client = new IncusClient(options);
    this.#clock = options.clock ?? systemClock;
    this.entries = new ProfileEntries(this.#client, this.#clock);
    this.volumes = options.volumes && new IncusVolumes(this.#client, options.volumes);
  }

  async createVm({ name, type, labels, volumes = [], keys }: VmRequest, { signal }: CallOptions): Promise<void> {
    const { image, instanceType, storagePool, network, instanceConfig = {} } = this.#options;
    const config: Record<string, string> = {
      "boot.autostart": "false",
      // A member that is evacuated says so, and waits for the pods to leave: no instance moves with what ran in it.
      "cluster.evacuate": "stop",
      "boot.host_shutdown_timeout": String(LEAVE_SECONDS),
      // What a container may need that runs containers.
      ...(instanceType === "container" && { "security.nesting": "true" }),
      ...instanceConfig,
      ...limitsOf(type.resources),
      [TYPE]: type.name,
      ...(type.zone !== undefined && { [ZONE]: type.zone }),
    };
    for (const [key, value] of Object.entries(labels)) config[LABEL + key] = value;
    // The instance reads them from Incus itself, when it boots.
    if (keys !== undefined) for (const [file, text] of Object.entries(keyFilesOf(keys))) config[KEY_FILE + file] = text;
    const { ephemeral_bytes: disk } = type.resources;
    const root = { type: "disk", pool: storagePool, path: "/", ...(disk !== undefined && { size: String(disk) }) };
    const disks = await this.volumes?.devicesOf(name, volumes, { signal });
    const isFingerprint = /^[0-9a-f]{64}$/.test(image);
    const body = {
      name,
      type: instanceType,
      start: true,
      profiles: [],
      source: { type: "image", ...(isFingerprint ? { fingerprint: image } : { alias: image }) },
      config,
      devices: { root, [NIC]: { type: "nic", network, name: NIC }, ...disks },
    };
    const zone = type.zone ?? (volumes.length > 0 ? this.volumes?.zone : undefined);
    const query = zone === undefined ? undefined : { target: zone };
    const asked = { method: "POST", path: "instances", query, body, signal } as const;
    const { error } = await this.#client.carryOut(asked, WAIT_SECONDS);
    if (error !== undefined) await this.#failed(name, labels, error, { signal });
  }

  /** Why no VM came of an order. */
  async #failed(name: string, labels: VmRequest["labels"], error: string, options: CallOptions): Promise<never> {
    const there = await this.#instance(name, options);
    const isOurs = there?.config?.[LABEL + BIRTH_LABEL] === labels[BIRTH_LABEL];
    if (there !== undefined && (!isOurs || stateOf(there, this.#clock.now()) !== "booting"))
      throw new ProviderError("conflict", `there is an instance ${name}`);
    // It was made and did not start.
    if (there !== undefined) await this.deleteVm(name, options);
    const isRoom =
      /reached maximum|exceed|not enough|no space|insufficient|no suitable cluster member|quota|member is evacuated/i;
    throw new ProviderError(isRoom.test(error) ? "quota" : "unavailable", `Incus: ${error}`);
  }

  async getVm(name: string, options: CallOptions): Promise<Vm> {
    const instance = await this.#instance(name, options).catch((thrown: unknown) =>
      this.#outOfSight(name, thrown, options),
    );
    if (instance === undefined) throw new ProviderError("not_found", `there is no instance ${name}`);
    if (lacksStart(instance, this.#clock.now())) await this.#start(name, options);
    const isUp = instance.status_code === RUNNING;
    const addresses = isUp ? await this.#addresses(name, options) : [];
    const vm = vmOf(instance, addresses ?? [], addresses !== undefined, this.#clock.now());
    const notice = isUp && vm.host !== undefined ? await this.#noticeOf(vm.host, options) : undefined;
    return { ...vm, notice };
  }

  /** What it says to that does not matter: an instance that it works on is busy, and the next look comes soon. */
  async #start(name: string, { signal }: CallOptions): Promise<void> {
    const body = { action: "start", timeout: -1 };
    await this.#client.ask({ method: "PUT", path: `instances/${name}/state`, body, signal });
  }

  /** That its member is being emptied: `incus cluster evacuate` says so first, then it stops one after the other. */
  async #noticeOf(member: string, options: CallOptions): Promise<VmNotice | undefined> {
    const now = this.#clock.monotonic();
    if (this.#evacuated === undefined || now - this.#evacuated.at > MEMBERS_MS)
      this.#evacuated = { at: now, names: await this.#evacuatedMembers(options) };
    if (!this.#evacuated.names.has(member)) return undefined;
    return { reason: "HostEvacuated", message: `cluster member ${member} is being evacuated` };
  }

  /** None when it cannot be told: nothing hangs on that but how soon a pod leaves. */
  async #evacuatedMembers({ signal }: CallOptions): Promise<ReadonlySet<string>> {
    const query = { recursion: "1" };
    const reply = await this.#client.ask({ method: "GET", path: "cluster/members", query, signal });
    const members: unknown[] = reply.error === undefined && Array.isArray(reply.metadata) ? reply.metadata : [];
    return new Set(
      members.flatMap((member) => {
        const { server_name: name, status } = (member ?? {}) as Partial<Member>;
        return name !== undefined && status === "Evacuated" ? [name] : [];
      }),
    );
  }

  /** Those whose hosts are seen: of the others Incus tells no labels. */
  async listVms([key, value]: readonly [string, string], { signal }: CallOptions): Promise<Vm[]> {
    const query = { recursion: "1", filter: `config.${LABEL}${key} eq ${value}` };
    const reply = await this.#client.ask({ method: "GET", path: "instances", query, signal });
    if (reply.error !== undefined) throw unknown(reply);
    return namedIn<Instance>(reply.metadata)
      .filter(({ config }) => config?.[LABEL + key] === value)
      .map((each) => vmOf(each, [], true, this.#clock.now()));
  }

  async deleteVm(name: string, { signal }: CallOptions): Promise<void> {
    const path = `instances/${name}`;
    const body = { action: "stop", force: true, timeout: -1 };
    // One that has stopped, or starts just now, is told by the next answer.
    const stopped = { method: "PUT", path: `${path}/state`, body, signal } as const;
    await this.#client.carryOut(stopped, STOP_SECONDS);
    const deleted = await this.#client.carryOut({ method: "DELETE", path, signal }, REMOVAL_SECONDS);
    if (deleted.error !== undefined && !isAbsent(deleted) && (await this.#instance(name, { signal })) !== undefined)
      throw unknown(deleted);
  }

  /**
   * A guest with keys is dialled at its address, and shows that it is this instance's. Else the stream would be broken
   * by now if the instance behind it had gone, so this one's labels are those behind it.
   */
  async dial(vm: Vm, options: CallOptions): Promise<Duplex> {
    const { name, labels } = vm;
    if (labels[KEYS_LABEL] !== undefined) {
      const addresses = vm.addresses.length > 0 ? vm.addresses : ((await this.#addresses(name, options)) ?? []);
      return await dialAddress({ name, addresses }, options);
    }
    const stream = await dialGuest(this.#client, name, options);
    try {
      const instance = await this.#instance(name, options);
      const birth = labels[BIRTH_LABEL];
      if (birth !== undefined && instance?.config?.[LABEL + BIRTH_LABEL] === birth) return stream;
    } catch (thrown) {
      stream.destroy();
      throw thrown;
    }
    stream.destroy();
    throw new ProviderError("unavailable", `${name} is another instance by now`);
  }

  /** Of which image, and with what else of the configuration, one would be made now. */
  async version({ signal }: CallOptions): Promise<string> {
    const { image, instanceType, storagePool, network, instanceConfig = {} } = this.#options;
    const reply = await this.#client.ask({
      method: "GET",
      path: `images/aliases/${encodeURIComponent(image)}`,
      signal,
    });
    if (reply.error !== undefined && reply.status !== 404) throw unknown(reply);
    // What is no alias is the fingerprint itself.
    const { target = image } = (reply.error === undefined ? reply.metadata : {}) as { target?: string };
    return JSON.stringify([target, instanceType, storagePool, network, instanceConfig]);
  }

  async close(): Promise<void> {
    await this.#client.close();
  }

  /** Undefined when there certainly is none. */
  async #instance(name: string, { signal }: CallOptions): Promise<Instance | undefined> {
    const reply = await this.#client.ask({ method: "GET", path: `instances/${name}`, signal });
    if (reply.error === undefined) return reply.metadata as Instance;
    if (isAbsent(reply)) return undefined;
    throw unknown(reply);
  }

  /**
   * Of an instance whose member is silent Incus says nothing when it is asked; in the list it is there, in error.
   * @throws what was `thrown`, when that says nothing either
   */
  async #outOfSight(name: string, thrown: unknown, { signal }: CallOptions): Promise<Instance> {
    const now = this.#clock.monotonic();
    if (this.#unseen === undefined || now - this.#unseen.at > MEMBERS_MS)
      this.#unseen = { at: now, listing: this.#unseenInstances() };
    const listed = (await unlessAborted(this.#unseen.listing, signal)).get(name);
    if (listed === undefined) throw thrown;
    return listed;
  }

  /**
   * One list for all that ask: a silent member may have thousands of instances. Nobody's signal ends it, for others
   * wait as well. None when it cannot be told.
   */
  async #unseenInstances(): Promise<ReadonlyMap<string, Instance>> {
    const query = { recursion: "1" };
    const signal = new AbortController().signal;
    const reply = await this.#client.ask({ method: "GET", path: "instances", query, signal }).catch(() => undefined);
    const all = reply?.error === undefined ? namedIn<Instance>(reply?.metadata) : [];
    return new Map(all.flatMap((each) => (each.status_code === ERROR ? [[each.name, each] as const] : [])));
  }

  /** Undefined when its host is not seen. */
  async #addresses(name: string, { signal }: CallOptions): Promise<string[] | undefined> {
    const reply = await this.#client.ask({ method: "GET", path: `instances/${name}/state`, signal });
    if (reply.error !== undefined) return undefined;
    const { network } = (reply.metadata ?? {}) as InstanceState;
    const found = network?.[NIC]?.addresses ?? [];
    return found.filter(({ scope }) => scope === "global").map(({ address }) => address);
  }
}

function vmOf(instance: Instance, addresses: readonly string[], isSeen: boolean, now: number): Vm {
  const { name, location } = instance;
  const config = instance.config ?? {};
  const labels = Object.entries(config).flatMap(([key, value]) =>
    key.startsWith(`${LABEL}vmlet-`) && key !== TYPE && key !== ZONE ? [[key.slice(LABEL.length), value] as const] : [],
  );
  return {
    name,
    labels: Object.fromEntries(labels),
    state: stateOf(instance, now),
    isSeen: isSeen && instance.status_code !== ERROR,
    type: config[TYPE],
    zone: config[ZONE],
    host: location === "none" ? undefined : location,
    volumes: volumesOf(instance.devices),
    addresses: addresses.toSorted((a, b) => Number(a.includes(":")) - Number(b.includes(":"))),
  };
}

function stateOf({ status_code: status, last_used_at: used = "", config }: Instance, now: number): VmState {
  if (status === STOPPING || status === ABORTING) return "deleting";
  if ([RUNNING, FREEZING, FROZEN, ERROR].includes(status)) return "running";
  // It is made before it is started, and marked as used before it is seen to run: that is on its way. What has stopped
  // is told so by its power; where the host went down with it, it was used long ago.
  const hasRun = config?.["volatile.last_state.power"] === "STOPPED" || now - Math.max(Date.parse(used), 0) > START_MS;
  if (status === STOPPED && Date.parse(used) > 0 && hasRun) return "stopped";
  return "booting";
}

/** It was made to be started, and an Incus that is killed in between forgets that. */
function lacksStart({ status_code: status, created_at: made = "", last_used_at: used = "" }: Instance, now: number) {
  return status === STOPPED && !(Date.parse(used) > 0) && now - Date.parse(made) > UNSTARTED_MS;
}

function limitsOf({ cpu_millis: cpu, memory_bytes: memory }: ResourceAmounts): Record<string, string> {
  const limits: Record<string, string> = {};
  if (cpu !== undefined) {
    limits["limits.cpu"] = String(Math.ceil(cpu / 1000));
    if (cpu % 1000 !== 0) limits["limits.cpu.allowance"] = `${Math.ceil(cpu / 10)}ms/${Math.ceil(cpu / 1000) * 100}ms`;
  }
  if (memory !== undefined) limits["limits.memory"] = String(memory);
  return limits;
}

const isAbsent = ({ status, error }: IncusReply): boolean => status === 404 && /instance not found/i.test(error ?? "");
const unknown = ({ status, error }: IncusReply) =>
  new ProviderError(status === 403 ? "unauthorized" : "unavailable", `Incus: ${error} (${status})`);
