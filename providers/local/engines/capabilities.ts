/**
 * What each engine can do, by what it has beyond the one before it. What the names mean is in CAPABILITIES of the
 * provider kit; providers/README.md has the table.
 */
import { type Capability, CONTAINER_CAPABILITIES, SUPERVISION_CAPABILITIES } from "../../../src/provider/kit/index.ts";

/** The supervisor brings them to every engine. */
const SUPERVISED_CAPABILITIES: readonly Capability[] = [
  ...SUPERVISION_CAPABILITIES,
  "restart_rules",
  "delete_if_absent",
];

/** Plain processes, whose files are those of this host and their volumes. */
export const PROCESS_CAPABILITIES: readonly Capability[] = [
  ...SUPERVISED_CAPABILITIES,
  "env_files",
  "volumes.empty_dir",
  "volumes.files",
  "volumes.persistent",
  "volumes.clone",
  "volumes.exclusive",
  "volumes.force_release",
  "patch_files",
];

/** Containers by an OCI runtime, on this host or in a guest. */
export const OCI_CAPABILITIES: readonly Capability[] = [
  ...SUPERVISED_CAPABILITIES,
  ...CONTAINER_CAPABILITIES,
  "env_files",
  "volumes.empty_dir.size_limit",
  "volumes.image",
  "host_ports",
  "sysctls",
  "ephemeral_storage_limits",
  "images.prewarm",
];

/** Disks in files, where the host has what they need. */
export const DISK_VOLUME_CAPABILITIES: readonly Capability[] = [
  "volumes.persistent",
  "volumes.block",
  "volumes.clone",
  "volumes.exclusive",
  "volumes.force_release",
];

/** Containers by a runtime that speaks CRI. */
export const CRI_CAPABILITIES: readonly Capability[] = [
  ...OCI_CAPABILITIES,
  "share_process_namespace",
  "resize_machine",
];

/** A machine with a kernel of its own can be handed over whole. */
export const VM_CAPABILITIES: readonly Capability[] = [
  ...OCI_CAPABILITIES,
  "supplemental_groups_policy",
  "privileged",
  "user_namespace",
  "share_process_namespace",
  "volumes.host_path",
  "volumes.nfs",
];
