/**
 * The OCI configuration (config.json) of a container: a pure function of the container's spec, its image and where
 * things are. The defaults are containerd's, so that a pod behaves as on any other node.
 */
import { join } from "node:path";
import type {
  ContainerResources,
  ContainerSecurity,
  ContainerSpec,
  MachineSpec,
} from "../../../src/provider/kit/index.ts";
import { ContainerError, type ImageConfig } from "../engine.ts";
import { capabilityName, DEFAULT_CAPABILITIES } from "./container-policy.ts";
import { oomScoreAdj } from "./machine-resources.ts";
import type { ResolvedUser } from "./users.ts";

export interface OciMount {
  destination: string;
  type: string;
  source: string;
  options: string[];
}

export interface BundleInput {
  spec: ContainerSpec;
  image: ImageConfig;
  user: ResolvedUser;
  hostname: string;
  rootfs: string;
  /**
   * Besides the mount namespace: those with a path are joined, others made new; those left out are the runtime's own.
   */
  namespaces: readonly { type: "user" | "network" | "ipc" | "uts" | "pid"; path?: string }[];
  /** Binds of volumes, hosts, resolv.conf...; after the system's own mounts, shorter paths first. */
  mounts: readonly OciMount[];
  cgroupsPath: string;
  cgroupVersion: 1 | 2;
  sysctls: readonly { name: string; value: string }[];
  /** For these capabilities; undefined when the container is unconfined. */
  seccomp: ((capabilities: readonly string[]) => object) | undefined;
  /** Of this host. */
  apparmorProfile?: string | undefined;
  pidsLimit: number;
  /**
   * Whose container it is. `memoryBytes` is the host's, or the VM's; its processes' `oom_score_adj` is not below the
   * lowest.
   */
  machine?: { spec: MachineSpec; memoryBytes: number; lowestOomScoreAdj: number };
  /** Of this host, in the container's own /dev or elsewhere. `areBound`: they are among the mounts already. */
  devices?: { nodes: readonly OciDevice[]; areBound: boolean } | undefined;
  /** A command of the runtime's side, run when the container has started. */
  poststart?: readonly [string, ...string[]];
  /** What "all" means: no more than the runtime itself has. Absent: all that Linux knows. */
  grantable?: readonly string[];
}

interface OciDevice {
  type: "c" | "b";
  path: string;
  hostPath: string;
  major: number;
  minor: number;
  fileMode: number;
  uid: number;
  gid: number;
  /** Of `r`, `w` and `m`. */
  access: string;
}

/** By number: linux/capability.h. */
export const ALL_LINUX_CAPABILITIES = [
  "CAP_CHOWN",
  "CAP_DAC_OVERRIDE",
  "CAP_DAC_READ_SEARCH",
  "CAP_FOWNER",
  "CAP_FSETID",
  "CAP_KILL",
  "CAP_SETGID",
  "CAP_SETUID",
  "CAP_SETPCAP",
  "CAP_LINUX_IMMUTABLE",
  "CAP_NET_BIND_SERVICE",
  "CAP_NET_BROADCAST",
  "CAP_NET_ADMIN",
  "CAP_NET_RAW",
  "CAP_IPC_LOCK",
  "CAP_IPC_OWNER",
  "CAP_SYS_MODULE",
  "CAP_SYS_RAWIO",
  "CAP_SYS_CHROOT",
  "CAP_SYS_PTRACE",
  "CAP_SYS_PACCT",
  "CAP_SYS_ADMIN",
  "CAP_SYS_BOOT",
  "CAP_SYS_NICE",
  "CAP_SYS_RESOURCE",
  "CAP_SYS_TIME",
  "CAP_SYS_TTY_CONFIG",
  "CAP_MKNOD",
  "CAP_LEASE",
  "CAP_AUDIT_WRITE",
  "CAP_AUDIT_CONTROL",
  "CAP_SETFCAP",
  "CAP_MAC_OVERRIDE",
  "CAP_MAC_ADMIN",
  "CAP_SYSLOG",
  "CAP_WAKE_ALARM",
  "CAP_BLOCK_SUSPEND",
  "CAP_AUDIT_READ",
  "CAP_PERFMON",
  "CAP_BPF",
  "CAP_CHECKPOINT_RESTORE",
];

export const MASKED_PATHS = [
  "/proc/acpi",
  "/proc/asound",
  "/proc/kcore",
  "/proc/keys",
  "/proc/latency_stats",
  "/proc/timer_list",
  "/proc/timer_stats",
  "/proc/sched_debug",
  "/proc/scsi",
  "/sys/firmware",
  "/sys/devices/virtual/powercap",
];
export const READONLY_PATHS = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

const DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
export const CPU_PERIOD_US = 100_000;
const MIN_CPU_QUOTA_US = 1_000;
/**
 * As kubelet does where it can: a container that has lost one of its processes to the kernel is not left half alive.
 */
const KILL_TOGETHER = { unified: { "memory.oom.group": "1" } };

/** @throws ContainerError when there is no command, or a capability or path cannot be */
export function ociConfig(input: BundleInput): object {
  const { spec, image, user, cgroupVersion, machine } = input;
  const security = spec.security ?? {};
  const privileged = security.privileged === true;
  const devices = devicesOf(input.devices, privileged);
  const capabilities = capabilitiesOf(spec.name, security, input.grantable);
  const unmasked = privileged || security.unmasked_proc === true;
  const seccomp = privileged || security.seccomp === "unconfined" ? undefined : input.seccomp?.(capabilities);
  return {
    ociVersion: "1.0.2",
    process: {
      terminal: spec.tty === true,
      user: { uid: user.uid, gid: user.gid, umask: 0o022, additionalGids: user.supplementalGroups },
      args: commandOf(spec, image),
      env: envOf(spec, image, user, input.hostname),
      cwd: cwdOf(spec, image),
      // No inheritable set (CVE-2022-24769): a program's file capabilities must not gain from it.
      capabilities: { bounding: capabilities, effective: capabilities, permitted: capabilities },
      ...(input.apparmorProfile === undefined ? {} : { apparmorProfile: input.apparmorProfile }),
      noNewPrivileges: security.allow_privilege_escalation === false && !privileged,
      ...(machine === undefined
        ? {}
        : {
            oomScoreAdj: Math.max(machine.lowestOomScoreAdj, oomScoreAdj(spec.name, machine.spec, machine.memoryBytes)),
          }),
    },
    root: { path: input.rootfs, readonly: security.read_only_root === true },
    mounts: [...systemMounts(privileged), ...input.mounts.toSorted((a, b) => depth(a) - depth(b))],
    ...(input.poststart === undefined
      ? {}
      : { hooks: { poststart: [{ path: input.poststart[0], args: input.poststart }] } }),
    linux: {
      ...devices.nodes,
      namespaces: [{ type: "mount" }, ...input.namespaces, ...(cgroupVersion === 2 ? [{ type: "cgroup" }] : [])],
      cgroupsPath: input.cgroupsPath,
      resources: {
        devices: devices.rules,
        ...ociResources(spec.resources, machine?.spec.resources, cgroupVersion),
        ...(cgroupVersion === 2 ? KILL_TOGETHER : {}),
        pids: { limit: input.pidsLimit },
      },
      ...(input.sysctls.length === 0
        ? {}
        : { sysctl: Object.fromEntries(input.sysctls.map(({ name, value }) => [name, value])) }),
      ...(seccomp === undefined ? {} : { seccomp }),
      ...rootPropagation(input.mounts),
      ...(unmasked ? {} : { maskedPaths: MASKED_PATHS, readonlyPaths: READONLY_PATHS }),
    },
  };
}

/** Nodes that the runtime makes, and what of them the control group lets through. */
function devicesOf(
  { nodes = [], areBound = false }: Partial<NonNullable<BundleInput["devices"]>> = {},
  privileged: boolean,
) {
  const made = nodes.map(({ access: _access, hostPath: _hostPath, ...device }) => device);
  return {
    nodes: made.length === 0 || areBound ? {} : { devices: made },
    rules: privileged
      ? [{ allow: true, access: "rwm" }]
      : [
          { allow: false, access: "rwm" },
          ...nodes.map(({ type, major, minor, access }) => ({ allow: true, type, major, minor, access })),
        ],
  };
}

/**
 * Cgroup settings for a container's resources, as kubelet makes them: shares from requests, quota and memory from
 * limits. Where the container has no limit, the machine's is its own.
 */
export function ociResources(
  { requests, limits }: ContainerResources = {},
  machine: ContainerResources | undefined,
  cgroupVersion: 1 | 2,
): { cpu: object; memory?: object } {
  const cpuLimit = limits?.cpu_millis || machine?.limits?.cpu_millis;
  const memory = limits?.memory_bytes || machine?.limits?.memory_bytes;
  const requested = requests?.cpu_millis ?? cpuLimit ?? 0;
  return {
    cpu: {
      shares: Math.min(262_144, Math.max(2, Math.floor((requested * 1024) / 1000))),
      ...(cpuLimit ? { period: CPU_PERIOD_US, quota: cpuQuotaUs(cpuLimit) } : {}),
    },
    // Equal swap means no swap: v1 counts both together; v2 counts swap alone, the runtime converts.
    ...(memory ? { memory: { limit: memory, ...(cgroupVersion === 2 ? { swap: memory } : {}) } } : {}),
  };
}

/** Of each `CPU_PERIOD_US`. */
export function cpuQuotaUs(millis: number): number {
  return Math.max(MIN_CPU_QUOTA_US, Math.floor((millis * CPU_PERIOD_US) / 1000));
}

/**
 * Kubernetes' rules: `command` replaces the entrypoint and drops the image's cmd, `args` replaces the cmd.
 * @internal
 */
export function commandOf(
  spec: Pick<ContainerSpec, "name" | "image" | "command" | "args">,
  image: ImageConfig,
): string[] {
  const given = spec.command !== undefined && spec.command.length > 0;
  const args = spec.args !== undefined && spec.args.length > 0 ? spec.args : given ? [] : (image.cmd ?? []);
  const command = [...(given ? spec.command! : (image.entrypoint ?? [])), ...args];
  if (command.length === 0)
    throw new ContainerError(
      "CreateContainerError",
      `container ${spec.name}: no command specified: image ${spec.image} has none, set command or args`,
    );
  return command;
}

/**
 * Later ones win: defaults, the image's, the container's own.
 * @internal
 */
export function envOf(
  spec: Pick<ContainerSpec, "env" | "tty">,
  image: ImageConfig,
  user: Pick<ResolvedUser, "home">,
  hostname: string,
): string[] {
  const env = new Map<string, string>([
    ["PATH", DEFAULT_PATH],
    ["HOSTNAME", hostname],
    ...(spec.tty === true ? [["TERM", "xterm"] as const] : []),
  ]);
  for (const entry of image.env ?? []) {
    const equals = entry.indexOf("=");
    if (equals > 0) env.set(entry.slice(0, equals), entry.slice(equals + 1));
  }
  for (const { name, value } of spec.env ?? []) env.set(name, value);
  if (!env.has("HOME")) env.set("HOME", user.home);
  return [...env].map(([name, value]) => `${name}=${value}`);
}

function cwdOf(spec: ContainerSpec, image: ImageConfig): string {
  const cwd = spec.working_dir || image.workingDir || "/";
  return cwd.startsWith("/") ? cwd : `/${cwd}`;
}

/** @throws ContainerError for a capability that Linux does not have */
export function capabilitiesOf(
  container: string,
  security: ContainerSecurity,
  grantable: readonly string[] = ALL_LINUX_CAPABILITIES,
): string[] {
  if (security.privileged === true) return [...grantable];
  const full = (name: string) => {
    const capability = capabilityName(name);
    if (capability !== "CAP_ALL" && !ALL_LINUX_CAPABILITIES.includes(capability))
      throw new ContainerError(
        "CreateContainerError",
        `container ${container}: unknown capability ${JSON.stringify(name)}`,
      );
    return capability;
  };
  const add = (security.capabilities_add ?? []).map(full);
  const drop = (security.capabilities_drop ?? []).map(full);
  const base: readonly string[] = add.includes("CAP_ALL")
    ? grantable
    : drop.includes("CAP_ALL")
      ? []
      : DEFAULT_CAPABILITIES;
  const kept = base.filter((capability) => !drop.includes(capability));
  return [...new Set([...kept, ...add.filter((capability) => capability !== "CAP_ALL")])];
}

function systemMounts(privileged: boolean): OciMount[] {
  const access = privileged ? "rw" : "ro";
  return [
    { destination: "/proc", type: "proc", source: "proc", options: ["nosuid", "noexec", "nodev"] },
    {
      destination: "/dev",
      type: "tmpfs",
      source: "tmpfs",
      options: ["nosuid", "strictatime", "mode=755", "size=65536k"],
    },
    {
      destination: "/dev/pts",
      type: "devpts",
      source: "devpts",
      options: ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"],
    },
    { destination: "/dev/mqueue", type: "mqueue", source: "mqueue", options: ["nosuid", "noexec", "nodev"] },
    { destination: "/sys", type: "sysfs", source: "sysfs", options: ["nosuid", "noexec", "nodev", access] },
    {
      destination: "/sys/fs/cgroup",
      type: "cgroup",
      source: "cgroup",
      options: ["nosuid", "noexec", "nodev", "relatime", access],
    },
  ];
}

/** Of the root of all mounts: it lets through what one of them lets through. */
function rootPropagation(mounts: readonly OciMount[]): { rootfsPropagation?: string } {
  const rootfsPropagation = ["rshared", "rslave"].find((each) => mounts.some(({ options }) => options.includes(each)));
  return rootfsPropagation === undefined ? {} : { rootfsPropagation };
}

/** Outer mounts first, or they would cover the inner ones. */
function depth(mount: OciMount): number {
  return mount.destination.split("/").filter((part) => part !== "").length;
}

/** A bind mount of a file or folder of this host. @param propagation of what is mounted below it later */
export function bind(
  source: string,
  destination: string,
  readOnly: boolean,
  propagation: "rprivate" | "rslave" | "rshared" = "rprivate",
): OciMount {
  return { destination, type: "bind", source, options: ["rbind", propagation, readOnly ? "ro" : "rw"] };
}

/** The capabilities in a mask as /proc/PID/status shows it. */
export function capabilitiesInMask(hex: string): string[] {
  const mask = BigInt(`0x${hex.trim()}`);
  return ALL_LINUX_CAPABILITIES.filter((_, bit) => (mask >> BigInt(bit)) & 1n);
}

/** The environment of a command in a container: with a terminal, it says which. */
export function commandEnv(env: readonly string[], tty: boolean): string[] {
  return tty && !env.some((entry) => entry.startsWith("TERM=")) ? [...env, "TERM=xterm"] : [...env];
}

/** Without those in whose place another is mounted later: what the pod mounts replaces what an engine would. */
export function effectiveMounts(mounts: readonly OciMount[]): OciMount[] {
  const place = ({ destination }: OciMount) => join("/", destination, "/");
  return mounts.filter((mount, index) => !mounts.some((later, at) => at > index && place(later) === place(mount)));
}
