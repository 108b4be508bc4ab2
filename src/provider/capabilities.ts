/**
 * What a backend says that it can do. A pod that needs a capability which is absent is refused with a reason; it is
 * never run without the thing it asked for. The core of the contract (create, list, get, stop, delete, logs) needs
 * none.
 */
export const CAPABILITIES = {
  // observation
  events: "watch of machine changes with revisions",
  stats: "usage of all machines in one call",
  capacity: "the node's capacity and conditions, and a new node's taints, come from the backend",
  // changes to what may be there
  delete_if_absent: "a tombstone for an id that has no machine, and for no other",
  // interaction
  exec: "commands in a running container",
  attach: "the main process's streams",
  port_forward: "byte streams to a port inside the machine",
  // shape of a machine
  images: "containers are started from OCI images",
  registry_auth: "registry credentials per machine",
  multi_container: "more than one main container",
  init_containers: "containers that run to completion first",
  sidecars: "init containers that stay (restart_policy always)",
  ephemeral_containers: "containers added to a running machine",
  probes: "startup, readiness and liveness probes inside the machine",
  hooks: "post_start and pre_stop",
  restart_rules: "container-level restart policies and exit-code rules",
  termination_message: "the termination message file",
  // volumes
  "volumes.empty_dir": "scratch space shared by the machine's containers",
  "volumes.empty_dir.size_limit": "an empty_dir above its size limit stops the machine",
  "volumes.files": "files given at create (configMap, secret, downwardAPI, projected, tokens)",
  "volumes.image": "an OCI image mounted as a volume",
  "volumes.host_path": "a path of the machine itself",
  "volumes.persistent": "volumes that outlive machines, one machine at a time, fenced",
  "volumes.block": "persistent volumes as block devices",
  "volumes.clone": "a persistent volume that begins as a copy of another",
  "volumes.exclusive": "a volume of a shared class kept for one owner's machines alone",
  "volumes.force_release": "a persistent volume taken from its machines, which are stopped for it",
  "volumes.nfs": "a folder of an NFS server",
  "volumes.host": "a path of the backend's host",
  "volumes.host_growth": "file systems on such devices grown while machines have them",
  "volumes.csi": "volumes that CSI drivers of the backend's host mount for one machine",
  "volumes.csi_persistent": "the same of volumes that outlive machines, which the cluster has attached to the host",
  "volumes.csi_block": "the same as block devices",
  "volumes.csi_growth": "their growth while machines have them",
  mount_propagation: "what is mounted in a volume later is seen there, in either direction",
  patch_files: "files replaced in a running machine",
  env_files: "variables of a container whose values are in files of an empty_dir",
  // changes to a running machine
  patch_image: "a container's image replaced in place",
  patch_registry_auth: "registry credentials of a machine replaced, and their version shown",
  resize: "cpu and memory changed in place",
  resize_machine: "the machine's own cpu and memory changed in place, besides those of its containers",
  // isolation
  pod_ip: "an address of its own, reachable from the node's network",
  host_ports: "ports of the host forwarded to the machine",
  hostname: "a hostname of its own",
  hosts: "entries in /etc/hosts",
  dns: "an own resolv.conf",
  security_context: "user, group, capabilities, read-only root, seccomp",
  supplemental_groups_policy: "none of the groups that an image has its user in (supplemental_groups_policy strict)",
  apparmor: "AppArmor profiles of the backend's host",
  privileged: "privileged containers",
  user_namespace: "users of the machine are none of its host's (host_users false)",
  sysctls: "kernel parameters of the machine",
  cdi_devices: "devices of the host, by their names in the Container Device Interface",
  devices: "the devices of the extended resources that capacity has, given to the containers that ask for them",
  resource_claims: "what the cluster has allocated by Dynamic Resource Allocation, made ready by its drivers' plugins",
  share_process_namespace: "one process namespace for all containers",
  resource_limits: "cpu and memory limits enforced, OOM kills reported",
  ephemeral_storage_limits: "local storage limits enforced",
  tty: "a terminal for the main process",
  // the backend's host, where its owner lets machines reach it
  host_network: "the host's network in place of an own",
  host_pid: "the host's processes",
  host_ipc: "the host's IPC namespace",
  bandwidth: "limits of what a machine sends and gets in a second",
  // what machines begin with
  "images.prewarm": "images that are pulled before a machine asks for them, and kept",
  // addresses
  pod_ranges: "machines have addresses of the ranges that the cluster has given to their Node",
  services: "machines reach the cluster's Services at the Services' own addresses",
  // placement
  instance_types: "named sizes",
} as const;

export type Capability = keyof typeof CAPABILITIES;

export const ALL_CAPABILITIES = Object.keys(CAPABILITIES) as readonly Capability[];

/**
 * What a provider has that runs the whole life of a machine on its own: order, restarts, probes, hooks and streams,
 * whatever its containers are. Providers declare by these sets, and by name what else they have.
 */
export const SUPERVISION_CAPABILITIES = [
  "events",
  "stats",
  "exec",
  "attach",
  "port_forward",
  "multi_container",
  "init_containers",
  "sidecars",
  "ephemeral_containers",
  "probes",
  "hooks",
  "patch_image",
  "tty",
] as const satisfies readonly Capability[];

/** What containers of images bring besides, each machine with an address, files and limits of its own. */
export const CONTAINER_CAPABILITIES = [
  "capacity",
  "images",
  "registry_auth",
  "patch_registry_auth",
  "termination_message",
  "volumes.empty_dir",
  "volumes.files",
  "patch_files",
  "resize",
  "pod_ip",
  "hostname",
  "hosts",
  "dns",
  "security_context",
  "resource_limits",
] as const satisfies readonly Capability[];
