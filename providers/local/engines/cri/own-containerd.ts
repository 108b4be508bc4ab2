/**
 * A containerd of our own: its socket, root, state, CNI configuration and certificates lie in folders of ours, and no
 * other program's containers are seen or touched. It outlives the backend, as shims do, so that machines run on; the
 * next backend finds it by its socket. `remove` takes it away whole.
 *
 *     DIR/root/             images, snapshots, metadata
 *     DIR/config.toml       written at each start
 *     DIR/cni/10-vmlet.conflist, DIR/cni-leases/
 *     /var/lib/cni/results/NETWORK-ID-eth0  what CNI's library has kept of each sandbox; the place cannot be chosen
 *     DIR/registries/      `_default`: of all images this backend, while it pulls one, and nobody else
 *     DIR/pid               `PID STARTTIME`
 *     DIR/containerd.log    as JSON; it may be the last to know how a container has ended
 *     /run/vmlet-cri-HASH/  sockets and what lives no longer than the host: unix sockets need a short path
 *     /run/vmlet-cri-HASH/exits/ID  how a container has ended, until that is told: containerd may lose it
 */
import { type ChildProcess, spawn } from "node:child_process";
import { closeSync, existsSync, openSync } from "node:fs";
import { chmod, mkdir, readdir, readFile, rm, stat, truncate, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { type Clock, toError } from "../../../../src/provider/kit/index.ts";
import type { HostProblem } from "../../engine.ts";
import { findTool } from "../../host/command.ts";
import { readFileIfExists, writeFileAtomic, writeJson } from "../../host/files.ts";
import { machineHash } from "../../host/machine-hash.ts";
import { unmountBelow } from "../../host/mounts.ts";
import { type PatienceLimits, patienceFor, processorMsOf } from "../../host/patience.ts";
import { isAlive, processStat } from "../../host/proc.ts";
import { removeTree } from "../../host/remove-tree.ts";
import { CriClient } from "./client.ts";
import { lastWords, loggedExits } from "./containerd-log.ts";
import { runtimesOf, shimOf } from "./runtimes.ts";
import { SandboxAddresses, type WrittenAddresses } from "./sandbox-addresses.ts";
import { sandboxImage } from "./sandbox-image.ts";
import { endShims, taskExit, type TaskExit, taskIds, watchTaskExits } from "./shims.ts";

interface OwnContainerdOptions {
  /** Made when absent. */
  dir: string;
  clock: Clock;
  /** The bridge that machines are on, made before the first of them. */
  bridge: string;
  /** That of the bridge; undefined while nobody has told it: until then it is asked for no machine on the bridge. */
  range: () => { cidr: string; gateway: string } | undefined;
  /** Types of runtimes by handler, besides those that are looked for. */
  runtimes?: Readonly<Record<string, string>> | undefined;
}

const PROGRAM = "containerd";
const SHIM = "containerd-shim-runc-v2";
/** Debian's, then everyone else's. */
const PLUGIN_DIRS = ["/usr/lib/cni", "/opt/cni/bin", "/usr/libexec/cni"];
const PLUGINS = ["bridge", "host-local"];
/** With a disk that its journal was replayed on, and processors that are others', it takes its time. */
const START: PatienceLimits = { ms: 30_000, processorMs: 60_000 };
/** How long a containerd that runs may take to answer before it is started again. */
const PATIENCE: PatienceLimits = { ms: 15_000, processorMs: 60_000 };
/** A fraction of what it may take to start: it waits for each shim that hangs, as many at a time as there are cores. */
const SHIM_TIMEOUT = "10s";
const POLL_MS = 20;
/** Where no registry is. */
const NOBODY = "http://127.0.0.1:9";
const STOP_MS = 10_000;
const PULL_MS = 30_000;
const LIST_MS = 10_000;
/** Of what it tells when it does not start. */
const LAST_WORDS_CHARS = 1_000;
/** It is not ready without one. Of documentation (RFC 5737): no machine ever gets an address of it. */
const NO_RANGE = { cidr: "192.0.2.0/29", gateway: "192.0.2.1" };
/** Of CNI: its plugins and its library name their files by it. */
const networkName = (bridge: string): string => `vmlet-${bridge}`;
/** Some thousand machines that came and went. */
const MAX_LOG_BYTES = 8 * 1024 ** 2;

export class OwnContainerd {
  readonly socket: string;
  readonly #options: OwnContainerdOptions;
  readonly #runDir: string;
  #registryUrl = NOBODY;
  /** Of before containerd was started, until it is looked through: later, sandboxes are being made. */
  #former: WrittenAddresses | undefined;

  constructor(options: OwnContainerdOptions) {
    this.#options = options;
    this.#runDir = `/run/vmlet-cri-${machineHash(options.dir)}`;
    this.socket = join(this.#runDir, "containerd.sock");
  }

  /** What the host lacks. @param runtimes types by handler, of the backend's file */
  static check(runtimes: Readonly<Record<string, string>> = {}): HostProblem[] {
    const problems: HostProblem[] = [];
    const lacks = (problem: string, cure: string) => problems.push({ fatal: true, problem, cure });
    if (findTool(PROGRAM) === undefined)
      lacks(
        `${PROGRAM} is not on the PATH`,
        "install containerd 2.0 or newer, or set engine.socket to a runtime's socket",
      );
    if (findTool(SHIM) === undefined)
      lacks(`${SHIM} is not on the PATH`, "install it beside containerd: it is part of the same release");
    if (findTool("runc") === undefined)
      lacks("runc is not on the PATH", "install the package runc (Debian: apt-get install runc)");
    for (const [handler, type] of Object.entries(runtimes))
      if (findTool(shimOf(type)) === undefined)
        lacks(
          `engine.runtimes names ${handler} (${type}), and ${shimOf(type)} is not on the PATH`,
          `install ${shimOf(type)}, or leave ${handler} out of engine.runtimes`,
        );
    for (const plugin of PLUGINS)
      if (!PLUGIN_DIRS.some((dir) => existsSync(join(dir, plugin))))
        lacks(
          `the CNI plugin ${plugin} is in none of ${PLUGIN_DIRS.join(", ")}`,
          "install the package containernetworking-plugins (Debian: apt-get install containernetworking-plugins)",
        );
    if (sandboxImage(process.arch) === undefined)
      lacks(
        `there is no sandbox program for the processor ${process.arch}`,
        "set engine.socket to the socket of a runtime with a sandbox image of its own",
      );
    if (process.getuid?.() !== 0) lacks("containers need root", "run the backend as root, or use the process engine");
    return problems;
  }

  /** Starts it, unless it runs; fulfilled when it answers. @throws Error with the end of its log when it does not */
  async start(signal: AbortSignal): Promise<void> {
    if (!(await this.#isWell(signal))) await this.#begin(signal);
    if (this.#former !== undefined) await this.#forgetStrays(this.#former, signal);
    await this.#provideSandboxImage(signal);
  }

  /** One that is slow is not started again: its start would be slower. */
  async #isWell(signal: AbortSignal): Promise<boolean> {
    const { clock } = this.#options;
    const pid = await this.#alive();
    if (pid === undefined) return false;
    using patience = patienceFor(() => processorMsOf(pid), PATIENCE, clock, PROGRAM);
    while ((await this.#alive()) !== undefined) {
      if (await this.#answers(signal)) return true;
      signal.throwIfAborted();
      if (patience.signal.aborted) return false;
      await clock.sleep(POLL_MS, signal);
    }
    return false;
  }

  async #begin(signal: AbortSignal): Promise<void> {
    await this.stop();
    await this.#configure();
    this.#former = await this.#addresses.written();
    const started = new AbortController();
    try {
      await this.#keepExits(started.signal);
      await this.#spawn(signal);
    } finally {
      started.abort(new Error("containerd has started"));
    }
  }

  async #spawn(signal: AbortSignal): Promise<void> {
    const { dir } = this.#options;
    // Appended to, so that it can be cut while containerd writes it.
    await rm(this.#logFile, { force: true });
    const log = openSync(this.#logFile, "a", 0o600);
    // Where the shim is, which may not be on it; last, for what lies there beside it is not to be taken before others.
    const path = [process.env["PATH"], dirname(findTool(SHIM) ?? "/usr/bin")].filter(Boolean).join(":");
    const child = spawn(findTool(PROGRAM)!, ["--config", join(dir, "config.toml")], {
      detached: true,
      cwd: "/",
      // It speaks to nobody but this backend, so it needs no proxies.
      env: { PATH: path },
      stdio: ["ignore", log, log],
    });
    closeSync(log);
    child.on("error", () => {});
    child.unref();
    const stat = child.pid === undefined ? undefined : processStat(child.pid);
    if (stat !== undefined) await writeFileAtomic(join(dir, "pid"), `${child.pid} ${stat.startTime}`);
    await this.#untilReady(child, signal);
  }

  /**
   * Writes down what containerd will not know of containers that ended without it, or before it could write that down,
   * or end until it has started.
   */
  async #keepExits(untilStarted: AbortSignal): Promise<void> {
    const told = (id: string, exit: TaskExit) => writeJson(this.#exitFile(id), exit);
    for (const [id, exit] of loggedExits((await readFileIfExists(this.#logFile)) ?? ""))
      if (!existsSync(this.#exitFile(id))) told(id, exit);
    await watchTaskExits(this.#options.clock, join(this.#runDir, "state"), untilStarted, told);
  }

  /** What is written down of containers and sandboxes that containerd does not have: it was killed, or its host was. */
  async #forgetStrays(former: WrittenAddresses, signal: AbortSignal): Promise<void> {
    const client = new CriClient(this.socket);
    try {
      // In this order: one that begins and ends meanwhile has its end written down.
      const exits = await readdir(join(this.#runDir, "exits"));
      const { containers } = await client.runtime.listContainers({}, client.within(LIST_MS, signal));
      const known = new Set(containers.map(({ id }) => id));
      for (const id of exits) if (!known.has(id)) await rm(this.#exitFile(id), { force: true });
      const { items } = await client.runtime.listPodSandbox({}, client.within(LIST_MS, signal));
      // One that containerd could not take up may run, and has its address.
      const running = await taskIds(join(this.#runDir, "state"));
      await this.#addresses.forget(former, new Set([...running, ...items.map(({ id }) => id)]));
      this.#former = undefined;
    } finally {
      client.close();
    }
  }

  get #addresses(): SandboxAddresses {
    const { dir, bridge } = this.#options;
    return new SandboxAddresses(join(dir, "cni-leases"), networkName(bridge));
  }

  get #logFile(): string {
    return join(this.#options.dir, "containerd.log");
  }

  /** Only the log's last moments are of use. To be called now and then, while somebody witnesses how containers end. */
  async trimLog(): Promise<void> {
    const { size } = await stat(this.#logFile).catch(() => ({ size: 0 }));
    if (size > MAX_LOG_BYTES) await truncate(this.#logFile);
  }

  #exitFile(containerId: string): string {
    return join(this.#runDir, "exits", containerId);
  }

  /** How a container has ended that containerd says nothing of; undefined when nobody knows. */
  async exitOf(containerId: string): Promise<TaskExit | undefined> {
    const text = await readFileIfExists(this.#exitFile(containerId));
    return text === undefined ? undefined : (JSON.parse(text) as TaskExit);
  }

  /** Writes down how a container that runs ends, when it does: containerd may be killed before it has. */
  async witness(containerId: string, signal: AbortSignal): Promise<void> {
    const exit = await taskExit(this.#options.clock, join(this.#runDir, "state"), containerId, signal);
    if (exit !== undefined) writeJson(this.#exitFile(containerId), exit);
  }

  /** It is told, and written down elsewhere. */
  async forgetExit(containerId: string): Promise<void> {
    await rm(this.#exitFile(containerId), { force: true });
  }

  /** Ends what has stayed of a sandbox that containerd has removed. */
  async endShim(sandboxId: string): Promise<void> {
    await endShims(this.#options.clock, this.socket, sandboxId);
  }

  async #untilReady(child: ChildProcess, signal: AbortSignal): Promise<void> {
    const { clock } = this.#options;
    const { pid } = child;
    using patience = patienceFor(() => (pid === undefined ? undefined : processorMsOf(pid)), START, clock, PROGRAM);
    while (!(await this.#answers(signal))) {
      signal.throwIfAborted();
      const hasEnded = pid === undefined || child.exitCode !== null || child.signalCode !== null;
      if (hasEnded || patience.signal.aborted) {
        const why = hasEnded ? "it has ended" : (patience.signal.reason as Error).message;
        throw new Error(["containerd does not start", why, await this.#lastWords()].filter(Boolean).join(": "));
      }
      await clock.sleep(POLL_MS, signal);
    }
  }

  async #provideSandboxImage(signal: AbortSignal): Promise<void> {
    const { name, registry, serve } = sandboxImage(process.arch)!;
    const client = new CriClient(this.socket);
    try {
      const image = { image: name };
      if ((await client.images.imageStatus({ image }, client.within(PULL_MS, signal))).image !== undefined) return;
      await serve(async (url) => {
        await this.#writeRegistry(registry, `server = ${JSON.stringify(url)}\n`);
        await client.images.pullImage({ image }, client.within(PULL_MS, signal));
      });
    } finally {
      client.close();
    }
  }

  /** Has it ask this registry for all images, whatever their names, and no other. */
  async pullFrom(url: string): Promise<void> {
    const folder = join(this.#options.dir, "registries");
    const known = ["_default", sandboxImage(process.arch)!.registry];
    // What another version of the backend has let it ask.
    for (const host of await readdir(folder).catch(() => []))
      if (!known.includes(host)) await rm(join(folder, host), { recursive: true, force: true });
    this.#registryUrl = url;
    await this.#writeRegistry("_default", `server = ${JSON.stringify(url)}\n`);
  }

  async #writeRegistry(host: string, text: string): Promise<void> {
    const folder = join(this.#options.dir, "registries", host);
    await mkdir(folder, { recursive: true });
    await writeFileAtomic(join(folder, "hosts.toml"), text);
  }

  /** Ends it and removes everything of it. Its sandboxes must be gone. */
  async remove(): Promise<void> {
    await this.stop();
    await endShims(this.#options.clock, this.socket);
    const { dir } = this.#options;
    await this.#addresses.retain(new Set());
    for (const folder of [dir, this.#runDir]) {
      await unmountBelow(folder);
      await removeTree(folder);
    }
  }

  /** Ends it when nothing runs in it; its images stay for the next start, and nothing else. */
  async retire(): Promise<void> {
    await this.stop();
    await endShims(this.#options.clock, this.socket);
    await this.#addresses.retain(new Set());
    await unmountBelow(this.#runDir);
    await removeTree(this.#runDir);
  }

  async #answers(signal: AbortSignal): Promise<boolean> {
    if (!existsSync(this.socket)) return false;
    const client = new CriClient(this.socket);
    try {
      const { status } = await client.runtime.status({}, client.within(2_000, signal));
      return ["RuntimeReady", "NetworkReady"].every(
        (type) => status?.conditions.find((each) => each.type === type)?.status,
      );
    } catch {
      return false;
    } finally {
      client.close();
    }
  }

  async #lastWords(): Promise<string> {
    const log = await readFile(this.#logFile, "utf8").catch((thrown: unknown) => String(toError(thrown)));
    return lastWords(log, LAST_WORDS_CHARS);
  }

  /** Its process id, if it runs. */
  async #alive(): Promise<number | undefined> {
    const [pid = "", startTime = ""] = ((await readFileIfExists(join(this.#options.dir, "pid"))) ?? "").split(" ");
    return pid !== "" && isAlive(Number(pid), startTime) ? Number(pid) : undefined;
  }

  /** Ends it; what it has on disk stays for the next start. Containers, if there are any, run on. */
  async stop(): Promise<void> {
    const { clock } = this.#options;
    const deadline = clock.monotonic() + STOP_MS;
    for (let pid = await this.#alive(); pid !== undefined; pid = await this.#alive()) {
      try {
        process.kill(pid, clock.monotonic() < deadline ? "SIGTERM" : "SIGKILL");
      } catch {
        // It has ended by itself.
      }
      await clock.sleep(POLL_MS);
    }
  }

  async #configure(): Promise<void> {
    const { dir } = this.#options;
    for (const folder of ["cni", "cni-leases", "registries"]) {
      await mkdir(join(dir, folder), { recursive: true, mode: 0o700 });
    }
    // The root of a machine with users of its own goes through it to its containers' file systems, and may not list it.
    await mkdir(this.#runDir, { recursive: true, mode: 0o711 });
    await chmod(this.#runDir, 0o711);
    await mkdir(join(this.#runDir, "exits"), { recursive: true, mode: 0o700 });
    await rm(join(dir, "registries"), { recursive: true, force: true });
    await this.pullFrom(this.#registryUrl);
    await this.#writeNetwork();
    await writeFile(join(dir, "config.toml"), this.#config(), { mode: 0o600 });
  }

  /** Has sandboxes get addresses of the range that there is now: fulfilled when containerd has read that. */
  async followRange(signal: AbortSignal): Promise<void> {
    const before = await readFileIfExists(this.#networkFile);
    if (before === undefined || before === this.#network()) return;
    await this.#writeNetwork();
    const { clock } = this.#options;
    const pid = await this.#alive();
    if (pid === undefined) return;
    using patience = patienceFor(() => processorMsOf(pid), PATIENCE, clock, PROGRAM);
    // What it does not know in time, it is told again with the next machine, whose address is looked at.
    while (!patience.signal.aborted && !(await this.#knowsNetwork(signal))) await clock.sleep(POLL_MS, signal);
  }

  async #knowsNetwork(signal: AbortSignal): Promise<boolean> {
    const subnet = this.#range().cidr;
    const client = new CriClient(this.socket);
    try {
      const { info } = await client.runtime.status({ verbose: true }, client.within(2_000, signal));
      return (info["cniconfig"] ?? "").includes(subnet);
    } catch {
      return false;
    } finally {
      client.close();
    }
  }

  get #networkFile(): string {
    return join(this.#options.dir, "cni/10-vmlet.conflist");
  }

  #range(): { cidr: string; gateway: string } {
    return this.#options.range() ?? NO_RANGE;
  }

  async #writeNetwork(): Promise<void> {
    await writeFileAtomic(this.#networkFile, this.#network());
  }

  #network(): string {
    const { dir, bridge } = this.#options;
    return networkConfig(join(dir, "cni-leases"), bridge, this.#range());
  }

  #config(): string {
    const { dir } = this.#options;
    const text = (value: string) => JSON.stringify(value);
    const pluginDirs = PLUGIN_DIRS.filter((folder) => existsSync(folder));
    const runtimes = runtimesOf(this.#options.runtimes ?? {});
    return `version = 3
root = ${text(join(dir, "root"))}
state = ${text(join(this.#runDir, "state"))}
disabled_plugins = ["io.containerd.nri.v1.nri", "io.containerd.internal.v1.tracing", "io.containerd.tracing.processor.v1.otlp", "io.containerd.snapshotter.v1.erofs", "io.containerd.snapshotter.v1.blockfile", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.btrfs"]

# It tells of each end before it clears it away: ./containerd-log.ts
[debug]
level = "info"
format = "json"
[grpc]
address = ${text(this.socket)}
[ttrpc]
address = ${text(`${this.socket}.ttrpc`)}

# It takes a shim that does not answer in time for dead, ends its containers and forgets how they ended: on a busy host
# the usual 5 s and 2 s are too short.
[timeouts]
"io.containerd.timeout.shim.load" = "${SHIM_TIMEOUT}"
"io.containerd.timeout.task.state" = "${SHIM_TIMEOUT}"

[plugins."io.containerd.cri.v1.images"]
# What a loss of power has left half written would be taken for whole.
image_pull_with_sync_fs = true
[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = ${text(sandboxImage(process.arch)!.name)}
[plugins."io.containerd.cri.v1.images".registry]
config_path = ${text(join(dir, "registries"))}

[plugins."io.containerd.cri.v1.runtime"]
# A host that may not lower it itself would refuse every container.
restrict_oom_score_adj = true
tolerate_missing_hugetlb_controller = true
netns_mounts_under_state_dir = true
enable_unprivileged_ports = true
enable_unprivileged_icmp = true
# A volume that is a block device is its container's user's.
device_ownership_from_security_context = true
[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = [${pluginDirs.map(text).join(", ")}]
conf_dir = ${text(join(dir, "cni"))}
use_internal_loopback = true
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
SystemdCgroup = false
${runtimes.map(({ handler, type }) => `[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.${handler}]\nruntime_type = ${text(type)}\n`).join("")}`;
  }
}

/** CNI's configuration of the bridge. @param dataDir where its plugin keeps the addresses that it gave out */
function networkConfig(dataDir: string, bridge: string, { cidr, gateway }: { cidr: string; gateway: string }): string {
  const ranges = [[{ subnet: cidr, gateway }]];
  const ipam = { type: "host-local", dataDir, ranges, routes: [{ dst: "0.0.0.0/0" }] };
  return JSON.stringify({
    ...{ cniVersion: "1.0.0", name: networkName(bridge) },
    // As network.ts has it of links that it makes itself.
    plugins: [{ type: "bridge", bridge, ipam, hairpinMode: true }],
  });
}
