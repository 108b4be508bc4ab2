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
import { link, mkdir, readdir, readFile, rename, rm, stat, writeFile } from "node:fs/promises";
import { createConnection } from "node:net";
import { join } from "node:path";
import type { Duplex } from "node:stream";
import { setTimeout as sleep } from "node:timers/promises";
import { CloudProvider, type Entry, type Vm, type VmCloud, type VmRequest } from "../providers/cloud/index.ts";
import { HttpVmProvider } from "../providers/http-vm/index.ts";
import { type CallOptions, ProviderError } from "../src/provider/kit/index.ts";

export const TYPES = [
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
const orAbsent = <T>(reading: Promise<T>): Promise<T | undefined> =>
  reading.catch((thrown: unknown) => {
    if (isCode(thrown, "ENOENT")) return undefined;
    throw new ProviderError("unavailable", String(thrown), { cause: thrown });
  });
/** Lists may lack some: those that go just now, or cannot be read. */
const seen = async <T>(all: Promise<T>[]): Promise<T[]> =>
  (await Promise.allSettled(all)).flatMap((each) => (each.status === "fulfilled" ? [each.value] : []));
let serial = 0;

export class ProcessCloud implements VmCloud {
  readonly name = "process-cloud";
  readonly entries: VmCloud["entries"];
  readonly #folder: string;
  readonly #vmlet: readonly string[];

  constructor(folder: string, vmlet: readonly string[]) {
    this.#folder = join(folder, "vms");
    this.entries = fileEntries(join(folder, "entries"));
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
    return (await seen(names.map((name) => this.getVm(name)))).filter(({ labels }) => labels[key] === value);
  }

  /** What runs in it outlives its guest: the guest has to end it, and is started for that when it is dead. */
  async deleteVm(name: string, { signal }: CallOptions): Promise<void> {
    const folder = join(this.#folder, name);
    if ((await orAbsent(stat(folder))) === undefined) return;
    if ((await this.getVm(name)).state !== "running") await this.#boot(folder);
    const guest = new HttpVmProvider({ url: `unix://${join(folder, "api.sock")}` });
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

  async close(): Promise<void> {}
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
function fileEntries(folder: string): VmCloud["entries"] {
  const files = async () => ((await orAbsent(readdir(folder))) ?? []).filter((file) => !file.endsWith(".draft"));
  const newest = async (name: string): Promise<{ version: number; words?: Entry["words"] }> => {
    const own = (await files()).filter((file) => file.startsWith(`${name}@`));
    const version = Math.max(0, ...own.map((file) => Number(file.split("@")[1])));
    if (version === 0) return { version };
    return { version, ...(JSON.parse(await readFile(join(folder, `${name}@${version}`), "utf8")) as object) };
  };
  const write = async (name: string, version: number, words?: Entry["words"]): Promise<Entry> => {
    const file = join(folder, `${name}@${version}`);
    const draft = `${file}-${process.pid}-${++serial}.draft`;
    await mkdir(folder, { recursive: true });
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
  };
  const get = async (name: string): Promise<Entry> => {
    const { version, words } = await newest(name);
    if (words === undefined) throw missing(`entry ${name}`);
    return { name, words, version: String(version) };
  };
  return {
    get,
    async list([key, value]) {
      const names = new Set((await files()).map((file) => file.split("@")[0]!));
      return (await seen([...names].map(get))).filter(({ words }) => words[key] === value);
    },
    async create(name, words) {
      const before = await newest(name);
      if (before.words !== undefined) throw new ProviderError("conflict", `there is an entry ${name}`);
      return await write(name, before.version + 1, words);
    },
    swap: (name, words, version) => write(name, Number(version) + 1, words),
    remove: async (name, version) => void (await write(name, Number(version) + 1)),
  };
}
