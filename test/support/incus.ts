/**
 * An Incus of a test's own: a cluster of two, one on this host and one on a host of its own (`incus-host.ts`), with the
 * image, and a network of one name and range on each.
 */
import { execFileSync } from "node:child_process";
import { existsSync } from "node:fs";
import { mkdir, readFile } from "node:fs/promises";
import { join } from "node:path";
import { buildGuestImage, imageProblems } from "../../src/cli/guest-image.ts";
import { bringImage } from "../../providers/cloud/incus/images.ts";
import { freePort } from "../e2e/harness/ports.ts";
import { must, passTime, waitFor } from "../e2e/harness/wait.ts";
import type { ManagedProcess, Sandbox } from "../e2e/harness/processes.ts";
import { missingForContainerd } from "./containerd.ts";
import { startHost } from "./incus-host.ts";

const RESTART_MS = 500;
const INCUSD = "/usr/libexec/incus/incusd";
const IMAGE = "vmlet-guest";
/** Of Debian. */
export const GUEST_SUITE = "bookworm";

/** Why no Incus can be had here; empty when it can. */
export async function missingForIncus(): Promise<string[]> {
  const missing = existsSync(INCUSD) ? [] : ["incus-base, incus-client and dnsmasq-base (Debian: bookworm-backports)"];
  if (process.getuid?.() !== 0) return [...missing, "root"];
  const containerd = await missingForContainerd();
  return [
    ...missing,
    ...(containerd === undefined ? [] : [containerd]),
    ...imageProblems().map(({ problem }) => problem),
  ];
}

type Member = "one" | "two";

export interface TestIncus {
  /** Reached by TLS, with a certificate that is restricted to the project. */
  readonly cloud: IncusSettings;
  /** This host's address on the network of member `one`'s instances; another of it, that both members' reach. */
  readonly gateway: string;
  readonly address: string;
  /** What `incus` says. */
  incus(...words: string[]): string;
  /** Names of the project's instances, whoever made them. */
  instances(): string[];
  /** The daemon dies; its instances run on. */
  kill(member: Member): Promise<void>;
  restart(member: Member): Promise<void>;
  /** Ends an evacuation, when it is over. */
  restore(member: Member): Promise<void>;
  stop(): Promise<void>;
}

export interface IncusSettings {
  readonly type: "incus";
  readonly url: string;
  readonly caFile: string;
  readonly certFile: string;
  readonly keyFile: string;
  readonly project: string;
  readonly instanceType: "container";
  readonly image: string;
  readonly storagePool: string;
  readonly network: string;
  readonly instanceConfig: Readonly<Record<string, string>>;
}

/**
 * Where it can be had, one that clones images: in one of folders each instance is a copy of 400 MB. Its file has holes, and
 * Kubernetes' own tests claim volumes of 10 GiB.
 */
function storagePool(): { name: string; driver: string; config?: { readonly size: string } } {
  const clones = existsSync("/dev/loop-control") && existsSync("/sbin/mkfs.btrfs");
  return clones ? { name: "default", driver: "btrfs", config: { size: "64GiB" } } : { name: "default", driver: "dir" };
}

/** As providers/README.md has a user make it. */
function restrictedCertificate(folder: string, incus: TestIncus["incus"]): { certFile: string; keyFile: string } {
  const [certFile, keyFile] = [join(folder, "agent.crt"), join(folder, "agent.key")];
  const curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:secp384r1", "-days", "3650", "-subj", "/CN=vmlet"];
  execFileSync("openssl", ["req", "-x509", ...curve, "-noenc", "-keyout", keyFile, "-out", certFile], {
    stdio: "ignore",
  });
  incus("config", "trust", "add-certificate", certFile, "--restricted", "--projects", "burst");
  return { certFile, keyFile };
}

interface StartOptions {
  /** Of the guest in the image, in place of the usual one; it is told `address` and `gateway`. */
  readonly guestConfig?: ((address: string, gateway: string) => string) | undefined;
  /** Images that every guest has from the start; it is told `address`. */
  readonly prewarm?: ((address: string) => Promise<string[]>) | undefined;
}

/** What was begun when it fails is taken away again: the host's network would keep it. */
export async function startIncus(sandbox: Sandbox, options: StartOptions = {}): Promise<TestIncus> {
  await using begun = new AsyncDisposableStack();
  const incus = await start(sandbox, options, begun);
  const all = begun.move();
  return { ...incus, stop: () => all.disposeAsync() };
}

async function start(
  sandbox: Sandbox,
  { guestConfig, prewarm }: StartOptions,
  begun: AsyncDisposableStack,
): Promise<Omit<TestIncus, "stop">> {
  const port = await freePort();
  const folder = join(sandbox.dir, "incus");
  const host = await startHost(sandbox, port);
  begun.use(host);
  const folders = { one: folder, two: join(sandbox.dir, "incus-two") };
  const envOf = (member: Member) => ({ ...process.env, INCUS_DIR: folders[member] });
  const daemon = [INCUSD, "--group", "root"] as const;
  const spawn = (member: Member) =>
    member === "one"
      ? sandbox.spawn(member, daemon[0], daemon.slice(1), { env: envOf(member) })
      : host.spawn(member, daemon, envOf(member));
  const ask = (member: Member, words: readonly string[], input?: object) =>
    execFileSync("incus", words, {
      env: envOf(member),
      encoding: "utf8",
      stdio: "pipe",
      timeout: 60_000,
      ...(input && { input: JSON.stringify(input) }),
    });
  const incus = (...words: string[]) => ask("one", words);
  const members = new Map<Member, ManagedProcess>();
  /** Those that are to end. */
  const ending = new WeakSet<ManagedProcess>();
  // As its unit does (Restart=on-failure): incusd 6.0.4 panics at times where somebody comes to an operation that has
  // just ended.
  const keep = (member: Member) => {
    const daemonOf = spawn(member);
    members.set(member, daemonOf);
    void daemonOf.exited.then(async () => {
      await passTime(RESTART_MS, "one that cannot begin at all does not keep the host busy");
      if (ending.has(daemonOf)) return;
      console.warn(`incusd of member ${member} has ended by itself, and is started again: see ${daemonOf.logFile}`);
      keep(member);
    });
  };
  const kill = async (member: Member) => {
    const daemonOf = members.get(member)!;
    ending.add(daemonOf);
    await daemonOf.kill("SIGKILL");
  };
  const startMember = async (member: Member) => {
    keep(member);
    await waitFor({ what: "Incus to answer" }, () => ask(member, ["query", "/1.0"]));
  };
  begun.defer(() => unmountAll(folder));
  begun.defer(async () => {
    for (const member of members.values()) {
      ending.add(member);
      await member.stop(20_000);
    }
  });
  for (const member of ["one", "two"] as const) {
    await mkdir(folders[member]);
    await startMember(member);
  }
  const address = `${host.near}:${port}`;
  const network = `vmt${port}`;
  const gateway = `10.${100 + (port % 100)}.${port % 250}.1`;
  const pool = storagePool();
  const preseed = {
    config: { "core.https_address": address, "cluster.https_address": address },
    storage_pools: [pool],
    networks: [
      { name: network, config: { "ipv4.address": `${gateway}/24`, "ipv4.nat": "true", "ipv6.address": "none" } },
    ],
    projects: [{ name: "burst", config: { "features.networks": "false" } }],
    cluster: { server_name: "one", enabled: true },
  };
  // What fails on the way may have made the network already.
  begun.defer(async () => {
    // It looks at every link of the host, and gives up when one goes meanwhile, whosever that is.
    await waitFor({ what: "the network to go" }, () => {
      if (incus("network", "list", "--format", "csv", "--columns", "n").split("\n").includes(network))
        incus("network", "delete", network);
    });
  });
  ask("one", ["admin", "init", "--preseed"], preseed);
  // The least: so long a member may be silent before its instances are out of sight.
  incus("config", "set", "cluster.offline_threshold", "11");
  const cluster_token = incus("cluster", "add", "two", "--quiet").trim().split("\n").at(-1);
  const size = pool.config && { entity: "storage-pool", name: pool.name, key: "size", value: pool.config.size };
  const joining = { enabled: true, server_name: "two", server_address: `${host.far}:${port}`, cluster_token };
  ask("two", ["admin", "init", "--preseed"], { cluster: { ...joining, member_config: size ? [size] : [] } });
  const instances = () => {
    const told = incus("query", "/1.0/instances?project=burst");
    return (JSON.parse(told) as string[]).map((path) => new URL(path, "http://incus").pathname.split("/").at(-1)!);
  };
  begun.defer(() => {
    for (const name of instances()) incus("delete", "--force", "--project", "burst", name);
  });
  const cloud: IncusSettings = {
    type: "incus",
    url: `https://${address}`,
    caFile: join(folder, "cluster.crt"),
    ...restrictedCertificate(sandbox.dir, incus),
    project: "burst",
    instanceType: "container",
    image: IMAGE,
    storagePool: "default",
    network,
    // This host's cgroups may be hybrid, which only a privileged container may use.
    instanceConfig: { "security.privileged": "true", "raw.lxc": "lxc.mount.auto=cgroup:rw:force" },
  };
  const file = join(sandbox.dir, "guest.tar");
  const signal = AbortSignal.timeout(600_000);
  const fingerprint = await buildGuestImage(file, {
    suite: GUEST_SUITE,
    guestConfig: guestConfig?.(host.near, gateway),
    prewarm: prewarm && { images: await prewarm(host.near), auth: [] },
    signal,
  });
  await bringImage(cloud, { file, fingerprint, alias: IMAGE }, { signal });
  return {
    cloud,
    gateway,
    address: host.near,
    incus,
    instances,
    kill,
    async restore(member) {
      const path = `/1.0/cluster/members/${member}`;
      await waitFor({ what: `member ${member} to be restored`, timeoutMs: 120_000 }, () => {
        const { status } = JSON.parse(incus("query", path)) as { status: string };
        if (status === "Evacuated")
          incus("query", "--wait", "-X", "POST", `${path}/state`, "-d", '{"action":"restore"}');
        must(status === "Online", status);
      });
    },
    async restart(member) {
      await kill(member);
      await startMember(member);
    },
  };
}

/** @param registry that guests trust */
export function guestConfigOf(registry: string): string {
  return JSON.stringify({
    apiVersion: "vmlet.dev/v1",
    kind: "BackendConfig",
    listen: { socket: "/run/vmlet/guest.sock" },
    stateDir: "/var/lib/vmlet",
    engine: {
      type: "cri",
      network: { cidr: "100.127.255.0/24" },
      images: { parallelPulls: 4, insecureRegistries: [registry] },
    },
  });
}

/** Of LXC's and of the daemon's own mounts. */
async function unmountAll(folder: string): Promise<void> {
  const mounts = await readFile("/proc/mounts", "utf8");
  for (const line of mounts.split("\n").toReversed()) {
    const [, place = ""] = line.split(" ");
    if (place.startsWith(folder)) execFileSync("umount", ["-l", place]);
  }
}
