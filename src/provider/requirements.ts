/**
 * What a specification needs from a backend, as capabilities. One function for all parts that refuse what cannot run:
 * the agent before it calls, the server before it passes on, a provider that is called directly.
 */
import type { Capability } from "./capabilities.ts";
import { ProviderError } from "./errors.ts";
import type { ContainerSpec, MachinePatch, MachineSpec, RuntimeHandler, Volume } from "./machine.ts";

export interface Requirement {
  capability: Capability;
  /** The specification's field that asks for it, as a dotted path. */
  field: string;
}

/**
 * Pull policies, resources, host name and DNS need nothing: every pod has them by default, and without them a backend
 * still runs the right thing. A caller that knows that a user asked for one of them expressly checks that capability
 * itself.
 */
export function requiredCapabilities(spec: MachineSpec): Requirement[] {
  const needs: Requirement[] = [];
  const need = (capability: Capability, field: string) => {
    needs.push({ capability, field });
  };

  if (spec.containers.length > 1) need("multi_container", "containers.1");
  spec.containers.forEach((container, index) => containerNeeds(container, `containers.${index}`, need));
  spec.init_containers?.forEach((container, index) => {
    const field = `init_containers.${index}`;
    if (container.restart_policy === "always") need("sidecars", `${field}.restart_policy`);
    else need("init_containers", field);
    containerNeeds(
      { ...container, ...(container.restart_policy === "always" ? { restart_policy: undefined } : {}) },
      field,
      need,
    );
  });
  spec.ephemeral_containers?.forEach((container, index) => {
    need("ephemeral_containers", `ephemeral_containers.${index}`);
    containerNeeds(container, `ephemeral_containers.${index}`, need);
  });
  spec.volumes?.forEach((volume, index) => volumeNeeds(volume, `volumes.${index}`, need));

  if (spec.resource_claims?.length) need("resource_claims", "resource_claims");
  if (spec.bandwidth !== undefined) need("bandwidth", "bandwidth");
  if (spec.instance_type !== undefined) need("instance_types", "instance_type");
  if (spec.hosts !== undefined && spec.hosts.length > 0) need("hosts", "hosts");
  if (spec.registry_auth !== undefined && spec.registry_auth.length > 0) need("registry_auth", "registry_auth");
  if (spec.security !== undefined) machineSecurityNeeds(spec.security, need);
  for (const part of ["network", "pid", "ipc"] as const)
    if (spec.host?.[part] === true) need(`host_${part}`, `host.${part}`);
  return needs;
}

type Need = (capability: Capability, field: string) => void;

function machineSecurityNeeds(security: NonNullable<MachineSpec["security"]>, need: Need): void {
  if (security.fs_group !== undefined) need("security_context", "security.fs_group");
  if (security.supplemental_groups?.length) need("security_context", "security.supplemental_groups");
  if (security.supplemental_groups_policy === "strict")
    need("supplemental_groups_policy", "security.supplemental_groups_policy");
  if (security.sysctls?.length) need("sysctls", "security.sysctls");
  if (security.host_users === false) need("user_namespace", "security.host_users");
  if (security.share_process_namespace === true) need("share_process_namespace", "security.share_process_namespace");
}

function containerNeeds(
  container: { [K in keyof ContainerSpec]?: ContainerSpec[K] | undefined },
  field: string,
  need: Need,
): void {
  if (container.tty === true) need("tty", `${field}.tty`);
  for (const hook of ["post_start", "pre_stop"] as const)
    if (container.hooks?.[hook] !== undefined) need("hooks", `${field}.hooks.${hook}`);
  for (const probe of ["startup", "readiness", "liveness"] as const) {
    if (container.probes?.[probe] !== undefined) need("probes", `${field}.probes.${probe}`);
  }
  if (container.restart_policy !== undefined) need("restart_rules", `${field}.restart_policy`);
  if (container.restart_rules?.length) need("restart_rules", `${field}.restart_rules`);
  if (container.devices?.length) need("volumes.block", `${field}.devices`);
  container.ports?.forEach((port, index) => {
    if (port.host_port !== undefined) need("host_ports", `${field}.ports.${index}.host_port`);
  });
  environmentNeeds(container, field, need);
  if (container.cdi_devices?.length) need("cdi_devices", `${field}.cdi_devices`);
  if (container.claims?.length) need("resource_claims", `${field}.claims`);
  container.mounts?.forEach((mount, index) => {
    if (mount.propagation !== undefined) need("mount_propagation", `${field}.mounts.${index}.propagation`);
  });
  if (container.security !== undefined) containerSecurityNeeds(container.security, `${field}.security`, need);
}

function environmentNeeds(
  { env, env_tokens: tokens }: { [K in keyof ContainerSpec]?: ContainerSpec[K] | undefined },
  field: string,
  need: Need,
): void {
  env?.forEach((variable, index) => {
    if (variable.from_file !== undefined) need("env_files", `${field}.env.${index}.from_file`);
  });
  if (tokens !== undefined) need("env_files", `${field}.env_tokens`);
}

function containerSecurityNeeds(security: NonNullable<ContainerSpec["security"]>, field: string, need: Need): void {
  if (security.privileged === true) need("privileged", `${field}.privileged`);
  for (const key of ["user", "group", "seccomp"] as const) {
    if (security[key] !== undefined && security[key] !== "unconfined") need("security_context", `${field}.${key}`);
  }
  for (const key of ["run_as_non_root", "read_only_root"] as const) {
    if (security[key] === true) need("security_context", `${field}.${key}`);
  }
  if (security.apparmor !== undefined && security.apparmor !== "unconfined") need("apparmor", `${field}.apparmor`);
  if (security.allow_privilege_escalation === false) need("security_context", `${field}.allow_privilege_escalation`);
  for (const key of ["capabilities_add", "capabilities_drop"] as const) {
    if (security[key]?.length) need("security_context", `${field}.${key}`);
  }
}

function volumeNeeds(volume: Volume, field: string, need: Need): void {
  switch (volume.type) {
    case "empty_dir":
      need("volumes.empty_dir", field);
      // In memory, the size is that of the file system: nothing has to be watched.
      if (volume.size_bytes !== undefined && volume.medium === "disk")
        need("volumes.empty_dir.size_limit", `${field}.size_bytes`);
      return;
    case "files":
      need("volumes.files", field);
      return;
    case "image":
      need("volumes.image", field);
      return;
    case "host_path":
      need("volumes.host_path", field);
      return;
    case "persistent":
      need("volumes.persistent", field);
      return;
    case "csi":
      if (volume.persistent === undefined) need("volumes.csi", field);
      else need("volumes.csi_persistent", `${field}.persistent`);
      if (volume.persistent?.mode === "block") need("volumes.csi_block", `${field}.persistent.mode`);
      return;
    case "nfs":
      need("volumes.nfs", field);
      return;
    case "host":
      need("volumes.host", field);
  }
}

/** @throws ProviderError unsupported for a runtime that is none of the backend's */
export function assertRuntimeHandler(
  { runtime_handler: wanted }: Pick<MachineSpec, "runtime_handler">,
  handlers: readonly Pick<RuntimeHandler, "name">[] = [],
): void {
  if (wanted === undefined || handlers.some(({ name }) => name === wanted)) return;
  const known = handlers.map(({ name }) => name).filter(Boolean);
  throw new ProviderError(
    "unsupported",
    `there is no runtime handler ${JSON.stringify(wanted)} (there is ${known.join(", ") || "none"})`,
    { field: "runtime_handler" },
  );
}

export function patchCapabilities(patch: MachinePatch): Requirement[] {
  const needs: Requirement[] = [];
  if (patch.files !== undefined) needs.push({ capability: "patch_files", field: "files" });
  if (patch.containers !== undefined) needs.push({ capability: "patch_image", field: "containers" });
  if (patch.resources !== undefined) needs.push({ capability: "resize", field: "resources" });
  if (patch.machine_resources !== undefined) needs.push({ capability: "resize_machine", field: "machine_resources" });
  if (patch.registry_auth !== undefined) needs.push({ capability: "patch_registry_auth", field: "registry_auth" });
  if (patch.csi_volumes !== undefined) needs.push({ capability: "volumes.csi_growth", field: "csi_volumes" });
  if (patch.host_volumes !== undefined) needs.push({ capability: "volumes.host_growth", field: "host_volumes" });
  if (patch.ephemeral_containers !== undefined)
    needs.push({ capability: "ephemeral_containers", field: "ephemeral_containers" });
  // What a machine's own containers would not be given, one that joins them is not either.
  patch.ephemeral_containers?.forEach((container, index) =>
    containerNeeds(container, `ephemeral_containers.${index}`, (capability, field) =>
      needs.push({ capability, field }),
    ),
  );
  return needs;
}

/** @throws ProviderError unsupported, naming the first field whose capability is missing */
export function assertCapable(needs: readonly Requirement[], capabilities: readonly string[]): void {
  const missing = needs.find((need) => !capabilities.includes(need.capability));
  if (missing === undefined) return;
  throw new ProviderError(
    "unsupported",
    `the backend lacks the capability ${missing.capability}, which ${missing.field} needs`,
    {
      field: missing.field,
    },
  );
}
