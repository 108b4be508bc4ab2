/**
 * Security contexts: the pod's and the container's merged (pkg/securitycontext), and how they are written into a
 * machine's specification.
 */
import type { ContainerSecurity, MachineSpec } from "../../provider/machine.ts";
import { allContainersOf } from "../../kube/pod.ts";
import type { Container, Pod } from "../../kube/wire.ts";
import { effectiveSecurityContext, pickDefined } from "../security-context.ts";

/** What the machine is told about one container; undefined when the pod asks for nothing. */
export function containerSecurity(
  pod: Pod,
  container: Pick<Container, "name" | "securityContext">,
): ContainerSecurity | undefined {
  const context = effectiveSecurityContext(pod, container);
  const add = context.capabilities?.add ?? [];
  const drop = context.capabilities?.drop ?? [];
  const seccomp = context.seccompProfile?.type;
  const security: ContainerSecurity = pickDefined({
    user: context.runAsUser,
    group: context.runAsGroup,
    run_as_non_root: context.runAsNonRoot,
    privileged: context.privileged,
    read_only_root: context.readOnlyRootFilesystem,
    allow_privilege_escalation: context.allowPrivilegeEscalation,
    capabilities_add: add.length > 0 ? [...add] : undefined,
    capabilities_drop: drop.length > 0 ? [...drop] : undefined,
    seccomp: seccomp === "RuntimeDefault" ? "runtime_default" : seccomp === "Unconfined" ? "unconfined" : undefined,
    apparmor: appArmorOf(context.appArmorProfile),
    unmasked_proc: context.procMount === "Unmasked" ? true : undefined,
  });
  return Object.keys(security).length > 0 ? security : undefined;
}

function appArmorOf(profile: ReturnType<typeof effectiveSecurityContext>["appArmorProfile"]): string | undefined {
  if (profile?.type === "Localhost") return `localhost/${profile.localhostProfile}`;
  if (profile?.type === "RuntimeDefault") return "runtime_default";
  return profile?.type === "Unconfined" ? "unconfined" : undefined;
}

/** What the machine is told about the pod as a whole; undefined when the pod asks for nothing. */
export function machineSecurity(pod: Pod): MachineSpec["security"] | undefined {
  const context = pod.spec?.securityContext;
  const groups = context?.supplementalGroups ?? [];
  const sysctls = context?.sysctls ?? [];
  const policy = context?.fsGroupChangePolicy;
  const security: NonNullable<MachineSpec["security"]> = pickDefined({
    fs_group: context?.fsGroup,
    fs_group_change_policy:
      policy === "OnRootMismatch" ? "on_root_mismatch" : policy === "Always" ? "always" : undefined,
    supplemental_groups: groups.length > 0 ? [...groups] : undefined,
    // The other policy is what a machine has that nothing is said of.
    supplemental_groups_policy: context?.supplementalGroupsPolicy === "Strict" ? "strict" : undefined,
    sysctls:
      sysctls.length > 0 ? sysctls.map(({ name, value }) => ({ name: name.replaceAll("/", "."), value })) : undefined,
    share_process_namespace: pod.spec?.shareProcessNamespace,
    host_users: pod.spec?.hostUsers,
  });
  return Object.keys(security).length > 0 ? security : undefined;
}

/** What the pod has of its node instead of its own; undefined when that is nothing. */
export function hostAccess({ spec }: Pod): MachineSpec["host"] | undefined {
  const host = pickDefined({
    network: spec?.hostNetwork || undefined,
    pid: spec?.hostPID || undefined,
    ipc: spec?.hostIPC || undefined,
  });
  return Object.keys(host).length > 0 ? host : undefined;
}

/** The one user that all containers run as, when there is such a user (volume/util `FsUserFrom`). */
export function sharedUser(pod: Pod): number | undefined {
  let shared: number | undefined;
  for (const container of allContainersOf(pod)) {
    const user = effectiveSecurityContext(pod, container).runAsUser;
    if (user === undefined || (shared !== undefined && shared !== user)) return undefined;
    shared = user;
  }
  return shared;
}
