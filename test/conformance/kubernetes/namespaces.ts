/**
 * The run has namespaces of its own for network, mounts and processes: its bridge, its Services' rules and its ports meet
 * nobody else's, and whatever it starts ends with it, however it ends.
 */
import { spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync } from "node:fs";
import { mkdir, readFile, writeFile } from "node:fs/promises";
import { runCommand, tryCommand } from "../../e2e/harness/exec.ts";
import type { EngineFacts, HostFacts } from "./specs.ts";

const INSIDE = "VMLET_CONFORMANCE_INSIDE";

/** The host's addresses in its network, of RFC 5737: each node has one, as if it had a host to itself. */
export const hostAddresses = ["192.0.2.10", "192.0.2.11"] as const;

/** The same of IPv6, of RFC 3849. */
export const hostIpv6Addresses = ["2001:db8::10", "2001:db8::11"] as const;

/** Machines reach the API server and the DNS server by it. */
export const hostAddress = hostAddresses[0];

export const serviceCidr = "10.96.0.0/16";

/** Of a cluster of two families. */
export const serviceIpv6Cidr = "fd00:10:96::/112";

export function isInside(): boolean {
  return process.env[INSIDE] === "1";
}

/**
 * Runs this very program again, inside. Bash is the first process, because it reaps the orphans.
 *
 * @param made what the program will find in the cache: nothing can be fetched inside, not even to be built
 * @returns the exit code
 */
export async function runInside(made: readonly (() => Promise<unknown>)[]): Promise<number> {
  for (const make of made) await make();
  const child = spawn(
    "unshare",
    [
      "--net",
      "--mount",
      "--propagation",
      "slave",
      "--pid",
      "--fork",
      "--kill-child",
      "--mount-proc",
      "bash",
      "-c",
    ].concat(['"$@"; exit $?', "bash", process.execPath], process.execArgv, process.argv.slice(1)),
    { stdio: "inherit", env: { ...process.env, [INSIDE]: "1" }, detached: true },
  );
  // The program inside stops in order, and this one waits for it; unshare and bash let the signal pass.
  for (const signal of ["SIGINT", "SIGTERM"] as const) process.on(signal, () => process.kill(-child.pid!, "SIGINT"));
  const [code] = (await once(child, "exit")) as [number | null];
  return code ?? 1;
}

/** To be called once, inside: /sys of this network, an empty folder of network namespaces, and an address for the host. */
export async function setUp(): Promise<Omit<HostFacts, keyof EngineFacts>> {
  const cgroups = "/mnt";
  await runCommand("mount", ["--rbind", "/sys/fs/cgroup", cgroups]);
  await runCommand("mount", ["-t", "sysfs", "sysfs", "/sys"]);
  await runCommand("mount", ["--rbind", cgroups, "/sys/fs/cgroup"]);
  await runCommand("umount", ["--lazy", "--recursive", cgroups]);
  await mkdir("/run/netns", { recursive: true });
  await runCommand("mount", ["-t", "tmpfs", "tmpfs", "/run/netns"]);
  await runCommand("ip", ["-batch", "-"], {
    input: [
      "link set lo up",
      // Not every kernel has dummy links; of a pair, the other end just lies there.
      "link add host0 type veth peer name host1",
      ...hostAddresses.map((address) => `address add ${address}/24 dev host0`),
      ...hostIpv6Addresses.map((address) => `address add ${address}/64 dev host0 nodad`),
      "link set host0 up",
      "link set host1 up",
      // A packet of the host itself needs a route before kube-proxy's rules see it.
      `route add ${serviceCidr} dev host0`,
      `route add ${serviceIpv6Cidr} dev host0`,
      "",
    ].join("\n"),
  });
  // What a machine sends to a Service comes back from a machine of the same bridge: the answer must pass the same rules.
  await writeFile("/proc/sys/net/bridge/bridge-nf-call-iptables", "1");
  // As systemd leaves a host: what is mounted later reaches the containers that ask for it, and the other way round. All of it
  // stays this run's own.
  await runCommand("mount", ["--make-rshared", "/"]);
  const { code } = await tryCommand("ip", ["link", "add", "dummy0", "type", "dummy"]);
  const lowered = await tryCommand("sh", ["-c", "echo -1 > /proc/self/oom_score_adj"]);
  const spoken = await tryCommand("python3", ["-c", "import socket as s; s.socket(s.AF_INET, s.SOCK_STREAM, 132)"]);
  return {
    nfs: (await readFile("/proc/filesystems", "utf8")).includes("\tnfs4\n"),
    dummyLinks: code === 0,
    oomScores: lowered.code === 0,
    sctp: spoken.code === 0,
    selinux: existsSync("/sys/fs/selinux/enforce"),
  };
}
