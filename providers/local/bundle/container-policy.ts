/**
 * What a container may ask for when it shares this host's kernel: nothing whose effect reaches beyond its machine's own
 * namespaces. A pod that needs more runs on an engine whose machines have a kernel of their own, or the host's owner
 * says so.
 */
import { isLoose } from "./apparmor.ts";
import { containersOf, type ContainerSpec, type MachineSpec, ProviderError } from "../../../src/provider/kit/index.ts";

/** What containerd gives to a container that asks for nothing. */
export const DEFAULT_CAPABILITIES = [
  "CAP_CHOWN",
  "CAP_DAC_OVERRIDE",
  "CAP_FSETID",
  "CAP_FOWNER",
  "CAP_MKNOD",
  "CAP_NET_RAW",
  "CAP_SETGID",
  "CAP_SETUID",
  "CAP_SETFCAP",
  "CAP_SETPCAP",
  "CAP_NET_BIND_SERVICE",
  "CAP_SYS_CHROOT",
  "CAP_KILL",
  "CAP_AUDIT_WRITE",
] as const;

/**
 * Besides the default ones: what they allow ends in the machine's network or IPC namespace, or in its memory limit. Not
 * CAP_SYS_PTRACE, though a process namespace bounds what it sees: the runtime itself passes through there, with all
 * capabilities, at each exec and each exec probe.
 */
export const CONTAINED_CAPABILITIES = ["CAP_NET_ADMIN", "CAP_NET_BROADCAST", "CAP_IPC_LOCK", "CAP_IPC_OWNER"] as const;

/** Kernel parameters that have a value per namespace (kubelet: pkg/kubelet/sysctl); others would change this host. */
const NAMESPACED_SYSCTLS = [/^net\./, /^kernel\.(?:shm|msg)/, /^kernel\.sem$/, /^fs\.mqueue\./];
const SYSCTL_NAME = /^[a-z0-9_-]+(?:[./][a-z0-9_-]+)+$/i;

export interface ContainerPolicy {
  /** Everything is admitted, also what hands this host over. */
  allowPrivileged: boolean;
  /** A container that says `privileged` itself is admitted: what else it asks for is less. */
  mayBePrivileged?: boolean | undefined;
  /** Full names. Of these, and of the default ones, a container may add any. */
  allowedCapabilities: readonly string[];
  /** The host's kernel enforces profiles of AppArmor: a container has one. */
  hasAppArmor: boolean;
}

/** `net_admin` -> `CAP_NET_ADMIN`. */
export function capabilityName(name: string): string {
  const upper = name.toUpperCase();
  return upper.startsWith("CAP_") ? upper : `CAP_${upper}`;
}

/** @throws ProviderError unsupported or invalid, with the field, for a machine that could reach beyond itself */
export function requireContained(spec: MachineSpec, policy: ContainerPolicy, root = "/"): void {
  for (const { name } of spec.security?.sysctls ?? []) {
    if (!SYSCTL_NAME.test(name) || !NAMESPACED_SYSCTLS.some((pattern) => pattern.test(name)))
      throw new ProviderError("invalid", `sysctl ${name} is not namespaced: it would change the host`, {
        field: "security.sysctls",
      });
  }
  if (policy.allowPrivileged) return;
  for (const { spec: container } of containersOf(spec)) requireContainedContainer(container, policy, root);
}

function requireContainedContainer(
  { name, security = {} }: ContainerSpec,
  policy: ContainerPolicy,
  root: string,
): void {
  const refuse = (field: keyof typeof security, what: string) =>
    new ProviderError(
      "unsupported",
      `container ${name}: ${what} would reach beyond the machine into this host's kernel, and engine.allowPrivileged is off: ` +
        "do without, or run this pod on the engine vm",
      { field: `containers.security.${field}` },
    );
  if (security.privileged === true) {
    if (policy.mayBePrivileged === true) return;
    throw refuse("privileged", "privileged");
  }
  const allowed = new Set<string>([...DEFAULT_CAPABILITIES, ...policy.allowedCapabilities]);
  for (const capability of security.capabilities_add ?? []) {
    if (!allowed.has(capabilityName(capability)))
      throw refuse("capabilities_add", `capability ${JSON.stringify(capability)}`);
  }
  if (security.unmasked_proc === true) throw refuse("unmasked_proc", "an unmasked /proc");
  if (security.seccomp === "unconfined") throw refuse("seccomp", "a container without a seccomp profile");
  if (security.apparmor === "unconfined" && policy.hasAppArmor)
    throw refuse("apparmor", "a container without an AppArmor profile");
  if (policy.hasAppArmor && isLoose(security.apparmor, root))
    throw refuse("apparmor", "a container with an AppArmor profile that is not enforced");
}
