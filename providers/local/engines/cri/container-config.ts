/** A container's spec in the words of CRI: pure, and as a kubelet does it (pkg/kubelet/kuberuntime). */
import { create } from "@bufbuild/protobuf";
import {
  type ContainerSecurity,
  containersOf,
  type ContainerSpec,
  formatOwner,
  isSidecar,
  type MachineSpec,
  type Mount,
  type ResourceAmounts,
} from "../../../../src/provider/kit/index.ts";
import { ContainerError, type ImageConfig } from "../../engine.ts";
import { capabilitiesOf, MASKED_PATHS, ociResources, READONLY_PATHS } from "../../bundle/bundle.ts";
import { capabilityName } from "../../bundle/container-policy.ts";
import { oomScoreAdj } from "../../bundle/machine-resources.ts";
import { checkNonRoot } from "../../bundle/users.ts";
import {
  type LinuxContainerResources,
  LinuxContainerResourcesSchema,
  type LinuxContainerSecurityContext,
  LinuxContainerSecurityContextSchema,
  NamespaceMode,
  SecurityProfile_ProfileType,
  Signal,
  SupplementalGroupsPolicy,
  type UserNamespace,
} from "./api.gen.js";

interface ContainerSurroundings {
  machineId: string;
  machine: MachineSpec;
  image: ImageConfig;
  cgroupVersion: 1 | 2;
  /** Of this host. */
  memoryBytes: number;
  /** The runtime's id of the container whose processes it is to see. */
  targetId: string | undefined;
  /** Of the sandbox, when they are not the host's. */
  users: UserNamespace | undefined;
}

export function criResources(
  { name, resources }: Pick<ContainerSpec, "name" | "resources">,
  { machine, cgroupVersion, memoryBytes }: Pick<ContainerSurroundings, "machine" | "cgroupVersion" | "memoryBytes">,
): LinuxContainerResources {
  const linux = linuxResources(ociResources(resources, machine.resources, cgroupVersion));
  if (cgroupVersion === 2) linux.unified = { "memory.oom.group": "1" };
  linux.oomScoreAdj = BigInt(oomScoreAdj(name, machine, memoryBytes));
  return linux;
}

function linuxResources(oci: ReturnType<typeof ociResources>): LinuxContainerResources {
  const { cpu, memory } = oci as {
    cpu: { shares: number; period?: number; quota?: number };
    memory?: { limit: number; swap?: number };
  };
  return create(LinuxContainerResourcesSchema, {
    cpuShares: BigInt(cpu.shares),
    ...(cpu.quota === undefined ? {} : { cpuPeriod: BigInt(cpu.period!), cpuQuota: BigInt(cpu.quota) }),
    ...(memory === undefined ? {} : { memoryLimitInBytes: BigInt(memory.limit) }),
    ...(memory?.swap === undefined ? {} : { memorySwapLimitInBytes: BigInt(memory.swap) }),
  });
}

/**
 * What a machine's containers have together, by which a runtime sizes one with a kernel of its own (Kata), without the
 * overhead of that. A limit only where each of them, or the machine, has one.
 * @param changed one of them, with what it is to have
 */
export function sandboxResources(
  machine: MachineSpec,
  cgroupVersion: 1 | 2,
  changed?: Required<Pick<ContainerSpec, "name" | "resources">>,
): LinuxContainerResources {
  const each = containersOf(machine)
    .filter(({ spec, kind }) => kind === "main" || isSidecar(spec, kind))
    .map(({ spec }) => (spec.name === changed?.name ? changed.resources : spec.resources) ?? {});
  const requests: ResourceAmounts = {};
  const limits: ResourceAmounts = {};
  for (const key of ["cpu_millis", "memory_bytes"] as const) {
    requests[key] = each.reduce((sum, own) => sum + (own.requests?.[key] ?? own.limits?.[key] ?? 0), 0);
    const own = each.map((resources) => resources.limits?.[key] ?? 0);
    const limit = own.includes(0) ? machine.resources?.limits?.[key] : own.reduce((sum, one) => sum + one, 0);
    if (limit !== undefined) limits[key] = limit;
  }
  const resources = { requests, limits };
  return linuxResources(ociResources(resources, undefined, cgroupVersion));
}

/** @throws ContainerError for a user that a kubelet refuses, or a capability that Linux does not have */
export function criSecurity(spec: ContainerSpec, surroundings: ContainerSurroundings): LinuxContainerSecurityContext {
  const { machine, targetId, users } = surroundings;
  const security = spec.security ?? {};
  const privileged = security.privileged === true;
  const unmasked = privileged || security.unmasked_proc === true;
  return create(LinuxContainerSecurityContextSchema, {
    ...userOf(spec, surroundings),
    supplementalGroups: [
      ...(machine.security?.supplemental_groups ?? []),
      ...(machine.security?.fs_group === undefined ? [] : [machine.security.fs_group]),
    ].map(BigInt),
    supplementalGroupsPolicy:
      machine.security?.supplemental_groups_policy === "strict"
        ? SupplementalGroupsPolicy.Strict
        : SupplementalGroupsPolicy.Merge,
    privileged,
    readonlyRootfs: security.read_only_root === true,
    noNewPrivs: security.allow_privilege_escalation === false && !privileged,
    capabilities: capabilitiesFor(spec.name, security),
    seccomp: {
      profileType:
        privileged || security.seccomp === "unconfined"
          ? SecurityProfile_ProfileType.Unconfined
          : SecurityProfile_ProfileType.RuntimeDefault,
    },
    ...appArmorOf(security),
    maskedPaths: unmasked ? [] : [...MASKED_PATHS],
    readonlyPaths: unmasked ? [] : [...READONLY_PATHS],
    namespaceOptions: namespaces(machine, { targetId, users }),
  });
}

/** The namespaces that a machine's containers share, and those that each has of its own. */
export function namespaces(
  machine: MachineSpec,
  { targetId, users }: { targetId?: string | undefined; users: UserNamespace | undefined },
) {
  const { network, pid, ipc } = machine.host ?? {};
  const shared = machine.security?.share_process_namespace === true;
  const own = targetId === undefined ? NamespaceMode.CONTAINER : NamespaceMode.TARGET;
  return {
    network: network === true ? NamespaceMode.NODE : NamespaceMode.POD,
    ipc: ipc === true ? NamespaceMode.NODE : NamespaceMode.POD,
    pid: pid === true ? NamespaceMode.NODE : shared ? NamespaceMode.POD : own,
    ...(pid === true || shared || targetId === undefined ? {} : { targetId }),
    ...(users === undefined ? {} : { usernsOptions: users }),
  };
}

/** As a kubelet: the image's user is named, or numbered, to the runtime, which reads the image's own files. */
function userOf({ name, security }: ContainerSpec, { machineId, machine, image }: ContainerSurroundings) {
  const [imageUser = "", imageGroup] = (image.user ?? "").split(":");
  checkNonRoot(
    {
      runAsNonRoot: security?.run_as_non_root === true,
      user: security?.user,
      container: name,
      pod: formatOwner(machineId, machine.labels),
    },
    imageUser,
  );
  const group = security?.group;
  const runAsGroup = group === undefined ? {} : { runAsGroup: { value: BigInt(group) } };
  if (security?.user !== undefined) return { runAsUser: { value: BigInt(security.user) }, ...runAsGroup };
  // Without a word of ours the runtime goes by the image's User, its group with it.
  if (group === undefined && imageGroup !== undefined) return {};
  const number = imageUser === "" ? 0 : Number(imageUser);
  if (Number.isInteger(number)) return { runAsUser: { value: BigInt(number) }, ...runAsGroup };
  return { runAsUsername: imageUser, ...runAsGroup };
}

/** Absent: the runtime's own, where its host has AppArmor. The older field is for runtimes that know it alone. */
function appArmorOf({ apparmor }: ContainerSecurity) {
  switch (apparmor) {
    case undefined:
      return {};
    case "runtime_default":
      return {
        apparmor: { profileType: SecurityProfile_ProfileType.RuntimeDefault },
        apparmorProfile: "runtime/default",
      };
    case "unconfined":
      return { apparmor: { profileType: SecurityProfile_ProfileType.Unconfined }, apparmorProfile: "unconfined" };
    default: {
      const localhostRef = apparmor.replace(/^localhost\//, "");
      return {
        apparmor: { profileType: SecurityProfile_ProfileType.Localhost, localhostRef },
        apparmorProfile: apparmor,
      };
    }
  }
}

function capabilitiesFor(container: string, security: ContainerSecurity) {
  // For its error alone: the runtime has the defaults.
  capabilitiesOf(container, security);
  const bare = (names: readonly string[] = []) => names.map((name) => capabilityName(name).slice("CAP_".length));
  return { addCapabilities: bare(security.capabilities_add), dropCapabilities: bare(security.capabilities_drop) };
}

/** `SIGRTMIN+3` is `SIGRTMINPLUS3` there. */
export function stopSignal(name: string | undefined): Signal {
  if (name === undefined) return Signal.RUNTIME_DEFAULT;
  const key = name.toUpperCase().replace("+", "PLUS").replace("-", "MINUS");
  const signal = Signal[(key.startsWith("SIG") ? key : `SIG${key}`) as keyof typeof Signal];
  return typeof signal === "number" ? signal : Signal.RUNTIME_DEFAULT;
}

/** A part of an image's content that a mount shows, or all of it. */
export function imageMount(mount: Mount, image: string | undefined) {
  if (image === undefined)
    throw new ContainerError("ImageVolumeMountFailed", `volume ${mount.volume}: its image is not there`);
  return {
    image: { image },
    imageSubPath: mount.sub_path ?? "",
    containerPath: mount.path,
    readonly: true,
  };
}
