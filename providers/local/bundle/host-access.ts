/**
 * What of this host a machine may have instead of its own: nothing, unless the host's owner lets its namespace. The
 * namespace is the word of the client that makes the machine: which clients are believed, their verb `host` says.
 */
import { lstatSync, mkdirSync, statSync, writeFileSync, type Stats } from "node:fs";
import {
  type Capability,
  LABEL_NAMESPACE,
  type MachineSpec,
  namesNamespace,
  ProviderError,
  requiredCapabilities,
  type ReservedCapabilities,
  type Volume,
} from "../../../src/provider/kit/index.ts";
import { ContainerError } from "../engine.ts";
import type { ContainerPolicy } from "./container-policy.ts";

export interface HostAccess {
  /** Kubernetes namespaces; `*` is each of them. */
  namespaces: readonly string[];
  /** Folder of this host where pods' logs are shown as a kubelet's. */
  podLogs?: string | undefined;
}

/** What `engine.host` gives. */
export const HOST_CAPABILITIES: readonly Capability[] = [
  "host_network",
  "host_pid",
  "host_ipc",
  "volumes.host",
  "volumes.host_growth",
  "mount_propagation",
];

type HostVolume = Extract<Volume, { type: "host" }>;

/** The capabilities that only machines of the owner's namespaces have; undefined when there are none. */
export function reservedFor(
  access: HostAccess | undefined,
  { allowPrivileged }: Pick<ContainerPolicy, "allowPrivileged">,
): ReservedCapabilities | undefined {
  if (access === undefined) return undefined;
  const capabilities = [...HOST_CAPABILITIES, ...(allowPrivileged ? [] : ["privileged"])];
  return { capabilities, namespaces: [...access.namespaces] };
}

/** Whether the owner hands the host to machines of this one's namespace. */
export function ownsHost({ labels }: Pick<MachineSpec, "labels">, access: HostAccess | undefined): boolean {
  return access !== undefined && namesNamespace(access.namespaces, labels[LABEL_NAMESPACE] ?? "");
}

/** Kernel parameters of what the machine has no own of. */
const SHARED_SYSCTLS = {
  network: /^net\./,
  ipc: /^(?:kernel\.(?:shm|msg|sem)|fs\.mqueue\.)/,
} as const;

/** @throws ProviderError unsupported, with the field, for a machine that may not have what it asks of the host */
export function requireHostAccess(spec: MachineSpec, access: HostAccess | undefined): void {
  const needs = requiredCapabilities(spec).filter(({ capability }) => HOST_CAPABILITIES.includes(capability));
  if (needs.length === 0) return;
  const { capability, field } = needs[0]!;
  if (!ownsHost(spec, access)) {
    const namespace = JSON.stringify(spec.labels[LABEL_NAMESPACE] ?? "");
    throw new ProviderError(
      "unsupported",
      `${capability} would reach beyond the machine into this host, and engine.host does not name the namespace ${namespace}`,
      { field },
    );
  }
  for (const part of ["network", "ipc"] as const) {
    if (spec.host?.[part] !== true) continue;
    const foreign = spec.security?.sysctls?.find(({ name }) => SHARED_SYSCTLS[part].test(name.replaceAll("/", ".")));
    if (foreign !== undefined)
      throw new ProviderError("invalid", `sysctl ${foreign.name} would change the host: host.${part} is set`, {
        field: "security.sysctls",
      });
  }
}

const KINDS: Readonly<Record<NonNullable<HostVolume["path_type"]>, readonly [(stats: Stats) => boolean, string]>> = {
  DirectoryOrCreate: [(stats) => stats.isDirectory(), "a directory"],
  Directory: [(stats) => stats.isDirectory(), "a directory"],
  FileOrCreate: [(stats) => stats.isFile(), "a file"],
  File: [(stats) => stats.isFile(), "a file"],
  Socket: [(stats) => stats.isSocket(), "a socket file"],
  CharDevice: [(stats) => stats.isCharacterDevice(), "a character device"],
  BlockDevice: [(stats) => stats.isBlockDevice(), "a block device"],
};

/** The volume's path, which is there afterwards. @throws ContainerError in the words of a kubelet (hostpath) */
export function hostPath({ path, path_type: type }: HostVolume): string {
  const failed = (message: string, cause?: unknown) =>
    new ContainerError("CreateContainerConfigError", `hostPath type check failed: ${path} ${message}`, { cause });
  try {
    const found = statSync(path, { throwIfNoEntry: false });
    if (found === undefined && (type === undefined || type === "DirectoryOrCreate"))
      mkdirSync(path, { recursive: true, mode: 0o755 });
    // A link that leads nowhere is not followed: what would be made there, and where, nobody asked for.
    else if (found === undefined && type === "FileOrCreate" && isFree(path))
      writeFileSync(path, "", { mode: 0o644, flag: "wx" });
    if (type === undefined) return path;
    const [isKind, name] = KINDS[type];
    const now = found ?? statSync(path, { throwIfNoEntry: false });
    if (now === undefined || !isKind(now)) throw failed(`is not ${name}`);
    return path;
  } catch (thrown) {
    if (thrown instanceof ContainerError) throw thrown;
    throw failed(`cannot be used: ${(thrown as Error).message}`, thrown);
  }
}

function isFree(path: string): boolean {
  return lstatSync(path, { throwIfNoEntry: false }) === undefined;
}
