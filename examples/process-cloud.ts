/**
 * A VM cloud in one small file, written from `vmlet/cloud` alone: a "VM" is a reference backend of its own on this host, its guest what
 * that serves, and entries are files. It isolates nothing; it shows what a cloud must keep. To run it:
 *
 *     nodes:
 *       - name: burst-0
 *         provider: { type: module, module: ./examples/process-cloud.ts, options: { folder: /var/tmp/process-cloud } }
 *
 * A copy that lies elsewhere imports "vmlet/cloud" and "vmlet/provider-kit".
 */
import { spawn } from "node:child_process";
import { once } from "node:events";
import { link, mkdir, readdir, readFile, rename, rm, writeFile } from "node:fs/promises";
import { createConnection } from "node:net";
import { join } from "node:path";
import type { Duplex } from "node:stream";
import { setTimeout as sleep } from "node:timers/promises";
import {
  CloudProvider,
  type Entry,
  type EntryStore,
  type InstanceType,
  type Vm,
  type VmCloud,
  type VmRequest,
} from "../providers/cloud/index.ts";
import { HttpVmProvider } from "../providers/http-vm/index.ts";
import { type CallOptions, ProviderError } from "../src/provider/kit/index.ts";

export const TYPES: readonly InstanceType[] = [
  { name: "small", resources: { cpu_millis: 1000, memory_bytes: 2 ** 30 }, price: 0.01 },
  { name: "large", resources: { cpu_millis: 8000, memory_bytes: 2 ** 34 }, price: 0.08 },
];
/** What the guests can do: the capabilities of the reference backend's engine `process`. */
const CAPABILITIES = [
  ...(["stats", "exec", "attach", "port_forward", "multi_container", "init_containers", "sidecars"] as const),
  ...(["ephemeral_containers", "probes", "hooks", "restart_rules", "tty"] as const),
];

/** @param options.vmlet how a guest is started */
export function createProvider(options: { folder: string; vmlet: string[] }): CloudProvider {
  const cloud = new ProcessCloud(options.folder, options.vmlet);
  return new CloudProvider({ cloud, scope: "example", types: TYPES, capabilities: CAPABILITIES, makeEveryMs: 200 });
}

const missing = (what: string) => new ProviderError("not_found", `there is no ${what}`);
const isCode = (thrown: unknown, code: string) => (thrown as NodeJS.ErrnoException).code === code;
/** Of a file that is certainly not there, undefined; whatever else is wrong is not known to be absence. */
const orAbsent = async <T>(reading: Promise<T>): Promise<T | undefined> => {
  try {
    return await reading;
  } catch (thrown) {
    if (isCode(thrown, "ENOENT")) return undefined;
    throw new ProviderError("unavailable", String(thrown), { cause: thrown });
  }
};
let serial = 0;

export class ProcessCloud implements VmCloud {
  readonly name = "process-cloud";
  readonly entries: EntryStore;
  readonly #folder: string;
  readonly #vmlet: readonly string[];

  constructor(folder: string, vmlet: readonly string[]) {
    this.#folder = join(folder, "vms");
    this.entries = new FileEntries(join(folder, "entries"));
    this.#vmlet = vmlet;
  }

  /** A folder that is renamed is there with all that is in it, or not at all, and only once. */
  async createVm(request: VmRequest): Promise<void> {
    const folder = join(this.#folder, request.name);
    const draft = `${folder}.${process.pid}-${++serial}`;
    await mkdir(draft, { recursive: true });
    await writeFile(join(draft, "request.json"), JSON.stringify(request));
    const config = { apiVersion: "vmlet.dev/v1", kind: "BackendConfig", engine: { type: "process" } };
    const paths = { stateDir: join(folder, "state"), listen: { socket: join(folder, "api.sock") } };
    await writeFile(join(draft, "backend.yaml"), JSON.stringify({ ...config, ...paths }));
    try {
      await rename(draft, folder);
    } catch (thrown) {
      await rm(draft, { recursive: true });
      if (!isCode(thrown, "ENOTEMPTY") && !isCode(thrown, "EEXIST")) throw thrown;
      throw new ProviderError("conflict", `there is a VM ${request.name}`);
    }
    await this.#boot(folder);
  }

  async #boot(folder: string): Promise<void> {
    const [program, ...words] = [...this.#vmlet, "backend", "--config", join(folder, "backend.yaml")];
    const guest = spawn(program, words, { detached: true, stdio: "ignore" });
    await once(guest, "spawn");
    guest.unref();
    await writeFile(join(folder, "pid"), String(guest.pid));
  }

  async getVm(name: string): Promise<Vm> {
    const folder = join(this.#folder, name);
    const request = await orAbsent(readFile(join(folder, "request.json"), "utf8"));
    if (request === undefined) throw missing(`VM ${name}`);
    const { labels, type } = JSON.parse(request) as VmRequest;
    const pid = await orAbsent(readFile(join(folder, "pid"), "utf8"));
    const state = pid === undefined ? "booting" : isAlive(Number(pid)) ? "running" : "stopped";
    return { name, labels, state, isSeen: true, type: type.name, host: "localhost", addresses: [] };
  }

  async listVms([key, value]: readonly [string, string]): Promise<Vm[]> {
    const names = ((await orAbsent(readdir(this.#folder))) ?? []).filter((name) => !name.includes("."));
    const seen = await Promise.allSettled(names.map((name) => this.getVm(name)));
    return seen
      .flatMap((each) => (each.status === "fulfilled" ? [each.value] : []))
      .filter(({ labels }) => labels[key] === value);
  }

  /** What runs in it outlives its guest: the guest has to end it, and is started for that when it is dead. */
  async deleteVm(name: string, { signal }: CallOptions): Promise<void> {
    const vm = await this.getVm(name).catch((thrown: unknown) => {
      if (thrown instanceof ProviderError && thrown.code === "not_found") return undefined;
      throw thrown;
    });
    if (vm === undefined) return;
    const folder = join(this.#folder, name);
    if (vm.state !== "running") await this.#boot(folder);
    const url = `unix://${join(folder, "api.sock")}`;
    const guest = new HttpVmProvider({ url });
    for (let left: number | undefined; left !== 0; await sleep(50, undefined, { signal })) {
      const { items } = await guest.getPods({ labels: {}, signal }).catch(() => ({ items: undefined }));
      for (const { id } of items ?? []) await guest.deletePod(id, { force: true, signal });
      left = items?.length;
    }
    await guest.close();
    const pid = Number(await readFile(join(folder, "pid"), "utf8"));
    for (process.kill(pid, "SIGTERM"); isAlive(pid);) await sleep(20, undefined, { signal });
    // Gone at once, however long it takes to remove.
    const gone = `${folder}.${process.pid}-${++serial}`;
    await rename(folder, gone);
    await rm(gone, { recursive: true });
  }

  /** A VM's folder is known by its name alone, so it is looked at once more whose it is. */
  async dial({ name, labels }: Vm, { signal }: CallOptions): Promise<Duplex> {
    const socket = createConnection(join(this.#folder, name, "api.sock"));
    await once(socket, "connect", { signal });
    const now = await this.getVm(name);
    if (JSON.stringify(now.labels) === JSON.stringify(labels)) return socket;
    socket.destroy();
    throw new ProviderError("unavailable", `${name} is another VM by now`);
  }

  close(): Promise<void> {
    return Promise.resolve();
  }
}

function isAlive(pid: number): boolean {
  try {
    return process.kill(pid, 0);
  } catch {
    return false;
  }
}

/**
 * Each version of an entry is a file of its own, and the next version's name can be taken once: that is the
 * compare-and-swap. Old versions stay, for a name that is free again could be taken again.
 */
class FileEntries implements EntryStore {
  readonly #folder: string;

  constructor(folder: string) {
    this.#folder = folder;
  }

  async get(name: string): Promise<Entry> {
    const { version, words } = await this.#newest(name);
    if (words === undefined) throw missing(`entry ${name}`);
    return { name, words, version: String(version) };
  }

  async list([key, value]: readonly [string, string]): Promise<Entry[]> {
    const files = (await orAbsent(readdir(this.#folder))) ?? [];
    const names = new Set(files.filter((file) => !file.endsWith(".draft")).map((file) => file.split("@")[0]!));
    const found = await Promise.all([...names].map(async (name) => ({ name, ...(await this.#newest(name)) })));
    return found.flatMap(({ name, words, version }) =>
      words?.[key] === value && words !== undefined ? [{ name, words, version: String(version) }] : [],
    );
  }

  async create(name: string, words: Entry["words"]): Promise<Entry> {
    const newest = await this.#newest(name);
    if (newest.words !== undefined) throw new ProviderError("conflict", `there is an entry ${name}`);
    return await this.#write(name, newest.version + 1, words);
  }

  async swap(name: string, words: Entry["words"], version: string): Promise<Entry> {
    return await this.#write(name, Number(version) + 1, words);
  }

  async remove(name: string, version: string): Promise<void> {
    await this.#write(name, Number(version) + 1, undefined);
  }

  async #newest(name: string): Promise<{ version: number; words?: Entry["words"] | undefined }> {
    const files = ((await orAbsent(readdir(this.#folder))) ?? []).filter((file) => file.startsWith(`${name}@`));
    const versions = files.filter((file) => !file.endsWith(".draft")).map((file) => Number(file.split("@")[1]));
    if (versions.length === 0) return { version: 0 };
    const version = Math.max(...versions);
    const text = await readFile(join(this.#folder, `${name}@${version}`), "utf8");
    return { version, words: (JSON.parse(text) as { words?: Entry["words"] }).words };
  }

  async #write(name: string, version: number, words: Entry["words"] | undefined): Promise<Entry> {
    const file = join(this.#folder, `${name}@${version}`);
    const draft = `${file}-${process.pid}-${++serial}.draft`;
    await mkdir(this.#folder, { recursive: true });
    await writeFile(draft, JSON.stringify({ words }));
    try {
      await link(draft, file);
    } catch (thrown) {
      if (isCode(thrown, "EEXIST")) throw new ProviderError("conflict", `the entry ${name} is another by now`);
      throw thrown;
    } finally {
      await rm(draft);
    }
    return { name, words: words ?? {}, version: String(version) };
  }
}
