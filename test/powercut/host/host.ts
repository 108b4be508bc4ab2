/** A computer of its own, emulated: Debian's kernel with control groups v2 alone, a disk, a backend, and a plug to pull. */
import { spawn, type ChildProcess } from "node:child_process";
import { once } from "node:events";
import { cp, mkdir, mkdtemp, readFile, rm, truncate, writeFile } from "node:fs/promises";
import { connect } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { addAbortSignal } from "node:stream";
import { assemble, copyPackage, portablePackages } from "../../../helm/assemble.ts";
import { HttpVmProvider } from "../../../providers/http-vm/index.ts";
import { defaultGuestDir } from "../../../providers/local/engines/vm/guest.ts";
import { GuestImage } from "../../../providers/local/engines/vm/guest-image.ts";
import { findTool } from "../../../providers/local/host/command.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { systemClock } from "../../../src/util/clock.ts";
import type { Random } from "../../../src/util/random.ts";
import { cached, cacheKey } from "../../e2e/harness/cache.ts";
import { runCommand } from "../../e2e/harness/exec.ts";
import { freePort } from "../../e2e/harness/ports.ts";
import { waitFor } from "../../e2e/harness/wait.ts";
import { VolatileDisk } from "./disk.ts";
import { hostState } from "./state.ts";

const SCRIPT = join(import.meta.dirname, "image.sh");
/** init writes it to the backend's token file. */
const TOKEN = "powercut-token-of-a-host-that-nobody-else-reaches";
const DISK_BYTES = 1024 * 1024 * 1024;
const MEMORY_MIB = 1536;
/** Emulated it takes half a minute of a processor. */
const BOOT: Patience = { processorMs: 120_000, ms: 900_000 };
/** A processor that is shared with much else takes its time for an answer. */
const ANSWER_MS = 30_000;
const TICK_MS = 10;
const SHELL_MS = 60_000;
/** A killed process goes at once, unless this machine is overrun. */
const EXIT_MS = 60_000;
const CONSOLE_CHARS = 8_000;

/** Programs that the emulated host and its making need, that are missing here. */
export function missingForHost(): string[] {
  const tools = [
    ...["qemu-system-x86_64", "apt-get", "dpkg-deb", "cpio", "ldd", "mksquashfs", "mke2fs", "busybox"],
    ...["runc", "skopeo", "umoci", "ip", "nft", "flock", "lz4", "as", "ld"],
  ];
  const missing = tools.filter((tool) => findTool(tool) === undefined);
  return process.arch === "x64" ? missing : [...missing, "a processor of type x64"];
}

export interface Images {
  vmlinuz: string;
  initrd: string;
  system: string;
}

/**
 * The kernel comes from the cache; what runs is of this checkout.
 * @param folder for the latter
 * @param programs a folder of containerd, its shim and runc, for engine cri; absent: it will not run
 */
export async function makeImages(folder: string, programs?: string): Promise<Images> {
  const sources = ["image.sh", "initramfs-init"].map((name) => readFile(join(import.meta.dirname, name)));
  const { stdout } = await runCommand("apt-cache", ["depends", "linux-image-cloud-amd64"]);
  const kernel = await cached(
    `powercut-kernel-${cacheKey([stdout, ...(await Promise.all(sources))])}`,
    async (path) => {
      await mkdir(path);
      await runCommand("bash", [SCRIPT, "kernel", path]);
    },
  );
  for (const part of ["lib", "apparmor"]) await cp(join(kernel, part), join(folder, part), { recursive: true });
  await assemble(join(folder, "application"));
  // The image has what the program was packed of no more, and a test's own program in the host is not packed.
  for (const place of await portablePackages()) await copyPackage(place, join(folder, "application/app"));
  const guest = new GuestImage({ dir: defaultGuestDir(), clock: systemClock, logger: silentLogger });
  await guest.ready();
  const system = ["system", folder, join(folder, "application"), defaultGuestDir(), ...(programs ? [programs] : [])];
  await runCommand("bash", [SCRIPT, ...system]);
  return { vmlinuz: join(kernel, "vmlinuz"), initrd: join(kernel, "initrd"), system: join(folder, "system") };
}

/** A host that gets no processor is not late: what it has had of one counts, until the end of all patience. */
export interface Patience {
  processorMs: number;
  ms: number;
}

export class EmulatedHost {
  readonly #images: Images;
  readonly #dir: string;
  readonly #kernelOptions: string;
  readonly disk: VolatileDisk;
  #qemu: ChildProcess | undefined;
  #port = 0;
  #scripts = 0;
  boots = 0;

  private constructor(images: Images, dir: string, kernelOptions: string) {
    this.#images = images;
    this.#dir = dir;
    this.#kernelOptions = kernelOptions;
    this.disk = new VolatileDisk(join(dir, "disk"), DISK_BYTES, join(dir, "disk.sock"));
  }

  /**
   * @param registry `127.0.0.1:PORT` here, from which it pulls by `registryName`
   * @param options.kernelOptions more of them for its kernel's command line
   */
  static async make(
    images: Images,
    registry: string,
    { engine = "oci", kernelOptions = "" }: { engine?: "oci" | "cri"; kernelOptions?: string } = {},
  ): Promise<EmulatedHost> {
    const dir = await mkdtemp(join(tmpdir(), "vmlet-powercut-"));
    await writeFile(join(dir, "disk"), "");
    await truncate(join(dir, "disk"), DISK_BYTES);
    await runCommand("mke2fs", ["-q", "-F", "-t", "ext4", join(dir, "disk")]);
    const config = {
      apiVersion: "vmlet.dev/v1",
      kind: "BackendConfig",
      stateDir: "/var/lib/vmlet/state",
      engine: { type: engine, images: { insecureRegistries: [insideName(registry)] } },
      listen: { address: "10.0.2.15", port: 8080 },
      tokenFile: "/etc/vmlet/token",
      // In memory it is gone with the power, and every machine has failed.
      secrets: { medium: "disk" },
    };
    await writeFile(join(dir, "config"), JSON.stringify(config).padEnd(4096, "\n"));
    await writeFile(join(dir, "token"), TOKEN);
    const host = new EmulatedHost(images, dir, kernelOptions);
    await host.disk.listen();
    return host;
  }

  /** What is on its disk, but for what was not flushed. */
  get diskFile(): string {
    return join(this.#dir, "disk");
  }

  get isOn(): boolean {
    return this.#qemu !== undefined;
  }

  /** Resolves when the backend answers. @throws Error when it does not, or is off before */
  async boot(): Promise<void> {
    this.disk.powerOn();
    this.boots++;
    this.#port = await freePort();
    for (const socket of [this.#shellSocket, this.#qmpSocket]) await rm(socket, { force: true });
    const drive = (id: string, source: string[], readonly: boolean) => [
      ...["-blockdev", [...source, `node-name=${id}`, ...(readonly ? ["read-only=on"] : [])].join()],
      ...["-device", `virtio-blk-pci,drive=${id}`],
    ];
    const file = (path: string) => ["driver=file", `filename=${path}`];
    const args = [
      ...["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-machine", "pc", "-cpu", "max"],
      ...["-accel", process.env["POWERCUT_ACCEL"] ?? "tcg,thread=multi", "-smp", "2", "-m", String(MEMORY_MIB)],
      ...["-kernel", this.#images.vmlinuz, "-initrd", this.#images.initrd],
      ...[
        "-append",
        `console=ttyS0 quiet panic=-1 mitigations=off random.trust_cpu=on no_timer_check tsc=reliable unknown_nmi_panic ${this.#kernelOptions}`,
      ],
      ...drive("vda", file(this.#images.system), true),
      ...drive("vdb", ["driver=nbd", "server.type=unix", `server.path=${join(this.#dir, "disk.sock")}`], false),
      ...drive("vdc", file(join(this.#dir, "config")), true),
      ...["-netdev", `user,id=net,hostfwd=tcp:127.0.0.1:${this.#port}-:8080`],
      ...["-device", "virtio-net-pci,netdev=net,romfile="],
      ...["-chardev", `file,id=console,path=${this.#console}`, "-serial", "chardev:console"],
      ...["-qmp", `unix:${this.#qmpSocket},server=on,wait=off`],
      ...["-chardev", `socket,id=shell,path=${this.#shellSocket},server=on,wait=off`, "-serial", "chardev:shell"],
    ];
    const qemu = spawn("qemu-system-x86_64", args, { stdio: ["ignore", "ignore", "inherit"] });
    this.#qemu = qemu;
    qemu.once("exit", () => {
      if (this.#qemu === qemu) this.#qemu = undefined;
    });
    const off = new AbortController();
    qemu.once("exit", () => off.abort(new Error("QEMU has ended")));
    await this.waitFor("the backend of the emulated host", BOOT, async () => {
      const signal = AbortSignal.any([off.signal, AbortSignal.timeout(ANSWER_MS)]);
      await this.provider().getPods({ labels: {}, signal });
    });
  }

  /** Asks again and again. @throws Error when it is off, or has had enough of a processor, or of time */
  async waitFor(what: string, { processorMs, ms }: Patience, probe: () => Promise<void>): Promise<void> {
    const before = await this.#processorMs();
    const failure = await waitFor({ what, timeoutMs: ms, intervalMs: 500 }, async () => {
      try {
        await probe();
        return undefined;
      } catch (thrown) {
        if (!this.isOn) return new Error(`the host is off, waiting for ${what}`, { cause: thrown });
        const spent = (await this.#processorMs()) - before;
        if (spent < processorMs) throw thrown;
        return new Error(`the host has computed for ${spent / 1000} s, waiting for ${what}`, { cause: thrown });
      }
    });
    if (failure !== undefined) throw failure;
  }

  /** What it has had of this machine's processors. */
  async #processorMs(): Promise<number> {
    const stat = await readFile(`/proc/${this.#qemu?.pid}/stat`, "latin1").catch(() => "");
    const [user = 0, system = 0] = stat
      .slice(stat.lastIndexOf(")") + 2)
      .split(" ")
      .slice(11, 13)
      .map(Number);
    return (user + system) * TICK_MS;
  }

  /** A client of its backend. */
  provider(): HttpVmProvider {
    return new HttpVmProvider({
      url: `http://127.0.0.1:${this.#port}`,
      credentials: { tokenFile: join(this.#dir, "token") },
    });
  }

  /** Pulls the plug. */
  async cut(random: Random): Promise<void> {
    const qemu = this.#qemu;
    this.disk.losePower(random);
    if (qemu === undefined) return;
    const exit = once(qemu, "exit", { signal: AbortSignal.timeout(EXIT_MS) });
    qemu.kill("SIGKILL");
    await exit.catch((thrown: unknown) => {
      throw new Error(`QEMU, process ${qemu.pid}, has not gone ${EXIT_MS / 1000} s after it was killed`, {
        cause: thrown,
      });
    });
  }

  /** What has been said on its console since it was switched on. */
  async console(): Promise<string> {
    return (await readFile(this.#console, "utf8").catch(() => "")).slice(-CONSOLE_CHARS);
  }

  /**
   * What a shell script prints there. Each has a process of its own: one that hangs is in nobody's way.
   * @throws Error when it has not ended in time
   */
  async shell(script: string, { timeoutMs = SHELL_MS } = {}): Promise<string> {
    const signal = AbortSignal.timeout(timeoutMs);
    const socket = connect(this.#shellSocket);
    const mark = `mark-${++this.#scripts}`;
    const file = `/run/script-${mark}`;
    const print = `echo; echo beg""in-${mark}; cat ${file}; echo; echo en""d-${mark}; rm ${file}`;
    let text = "";
    try {
      socket.write(`( { ${script}\n} >${file} 2>&1; ${print} ) </dev/null &\n`);
      for await (const chunk of addAbortSignal(signal, socket) as AsyncIterable<Buffer>) {
        text += chunk.toString();
        if (text.includes(`end-${mark}`)) break;
      }
    } catch (thrown) {
      if (!signal.aborted) throw thrown;
    } finally {
      socket.destroy();
    }
    const [begin, end] = [`begin-${mark}`, `end-${mark}`].map((word) => text.indexOf(word));
    if (begin! < 0 || end! < 0)
      throw new Error(`no end of a script after ${timeoutMs / 1000} s, which says ${JSON.stringify(text)}:\n${script}`);
    return text.slice(begin! + `begin-${mark}`.length, end).trim();
  }

  /** All that can be told of it when something has not come that was waited for; it may die of that. */
  async state(): Promise<string> {
    return await hostState({
      shell: (script, options) => this.shell(script, options),
      qmpSocket: this.#qmpSocket,
      pid: this.#qemu?.pid,
      console: () => this.console(),
    });
  }

  async close(): Promise<void> {
    await this.cut(Math.random);
    this.disk.close();
    await rm(this.#dir, { recursive: true, force: true });
  }

  get #console(): string {
    return join(this.#dir, "console");
  }

  get #qmpSocket(): string {
    return join(this.#dir, "qmp.sock");
  }

  get #shellSocket(): string {
    return join(this.#dir, "shell.sock");
  }
}

/** By which name the emulated host reaches a port of this one. */
export const insideName = (registry: string): string => registry.replace("127.0.0.1", "10.0.2.2");
