/**
 * A machine, as every provider and the Machine API describe it: one shape, in memory and on the wire, so there is no
 * mapping to get wrong. It knows nothing of Kubernetes. Names are snake_case because JSON carries them; sizes are
 * integer bytes, cpu integer millicores, times RFC 3339 UTC with milliseconds, file contents base64.
 *
 * providers/http-vm/openapi.yaml says the same in OpenAPI and is what both ends validate against.
 */

export type RestartPolicy = "always" | "on_failure" | "never";

export interface ResourceAmounts {
  cpu_millis?: number;
  memory_bytes?: number;
  ephemeral_bytes?: number;
  /** Whole numbers of other resources, each name once: `nvidia.com/gpu`, `vendor.example/license`. */
  extended?: { name: string; count: number }[];
}

export interface ContainerResources {
  requests?: ResourceAmounts;
  limits?: ResourceAmounts;
}

export interface EnvVar {
  name: string;
  value: string;
}

export interface FileEntry {
  /** Relative to the volume's root, `/` between segments, never `..`. */
  path: string;
  /** Permission bits as an integer (0o644 = 420). */
  mode: number;
  /** Owner of the file; absent leaves root. A service-account token belongs to the user that all containers run as. */
  uid?: number;
  content_b64: string;
}

export type Volume =
  | { name: string; type: "empty_dir"; medium: "disk" | "memory"; size_bytes?: number }
  | { name: string; type: "files"; version: string; files: FileEntry[] }
  | { name: string; type: "image"; image: string; pull_policy?: PullPolicy }
  | { name: string; type: "host_path"; path: string; path_type?: string };

export interface Mount {
  volume: string;
  path: string;
  read_only?: boolean;
  sub_path?: string;
}

export type PullPolicy = "always" | "if_not_present" | "never";

export interface ContainerPort {
  name?: string;
  port: number;
  protocol: "tcp" | "udp" | "sctp";
  host_port?: number;
  host_ip?: string;
}

export interface HttpAction {
  path: string;
  port: number;
  host?: string;
  scheme?: "http" | "https";
  headers?: { name: string; value: string }[];
}

/** Exactly one of the fields is set. `sleep` is for hooks only, `grpc` for probes only. */
export interface Handler {
  exec?: { command: string[] };
  http?: HttpAction;
  tcp?: { port: number; host?: string };
  grpc?: { port: number; service?: string };
  sleep?: { seconds: number };
}

export interface Probe extends Handler {
  initial_delay_s: number;
  period_s: number;
  timeout_s: number;
  success: number;
  failure: number;
  /** Replaces the machine's grace period when this probe kills the container. */
  termination_grace_s?: number;
}

export interface RestartRule {
  action: "restart" | "restart_all";
  exit_codes: { operator: "in" | "not_in"; values: number[] };
}

export interface ContainerSecurity {
  user?: number;
  group?: number;
  run_as_non_root?: boolean;
  privileged?: boolean;
  read_only_root?: boolean;
  allow_privilege_escalation?: boolean;
  capabilities_add?: string[];
  capabilities_drop?: string[];
  seccomp?: "runtime_default" | "unconfined";
  unmasked_proc?: boolean;
}

export interface ContainerSpec {
  name: string;
  image: string;
  pull_policy?: PullPolicy;
  /** Replaces the image's entrypoint; absent keeps it. */
  command?: string[];
  /** Replaces the image's cmd. */
  args?: string[];
  working_dir?: string;
  env?: EnvVar[];
  tty?: boolean;
  stdin?: boolean;
  stdin_once?: boolean;
  resources?: ContainerResources;
  mounts?: Mount[];
  ports?: ContainerPort[];
  stop?: { signal?: string };
  hooks?: { post_start?: Handler; pre_stop?: Handler };
  probes?: { startup?: Probe; readiness?: Probe; liveness?: Probe };
  /** Overrides the machine's restart policy. On an init container, `always` makes it a sidecar. */
  restart_policy?: RestartPolicy;
  restart_rules?: RestartRule[];
  /** On an ephemeral container: the container whose processes it sees, where the backend can show them. */
  target?: string;
  security?: ContainerSecurity;
  termination_message?: { path: string; policy: "file" | "fallback_to_logs" };
}

export interface RegistryAuth {
  registry: string;
  username?: string;
  password?: string;
  identity_token?: string;
}

export interface MachineSpec {
  /** Fixed for the machine's life; lists select by them. */
  labels: Record<string, string>;
  containers: ContainerSpec[];
  init_containers?: ContainerSpec[];
  ephemeral_containers?: ContainerSpec[];
  volumes?: Volume[];
  restart_policy: RestartPolicy;
  /** Seconds between the stop signal and SIGKILL when a stop names none. */
  termination_grace_s?: number;
  /** Sum over the containers plus overhead: what the machine is sized by. */
  resources?: ContainerResources;
  instance_type?: string;
  hostname?: string;
  /** Domain part: `hostname.domain` is an alias of the machine's own address in /etc/hosts. */
  domain?: string;
  /** The kernel's hostname is `hostname.domain` rather than `hostname` alone. */
  hostname_is_fqdn?: boolean;
  dns?: { nameservers: string[]; searches: string[]; options: string[] };
  hosts?: { ip: string; names: string[] }[];
  registry_auth?: RegistryAuth[];
  /** Opaque, tells nothing of the credentials. Comes back in `Machine.registry_auth_version`. */
  registry_auth_version?: string;
  security?: {
    fs_group?: number;
    fs_group_change_policy?: "always" | "on_root_mismatch";
    supplemental_groups?: number[];
    sysctls?: { name: string; value: string }[];
    share_process_namespace?: boolean;
    host_users?: boolean;
  };
  /**
   * A machine's address is not known when its spec is written. Each occurrence of one of these strings in a container's
   * env values, command or args is replaced, when the container starts, with the first address (`pod_ip`) or all of
   * them joined by commas (`pod_ips`).
   */
  address_tokens?: { pod_ip: string; pod_ips: string };
  /** Restart back-off, when it is not the usual 10 s doubling to 300 s. */
  backoff?: { initial_ms: number; max_ms: number };
}

/**
 * pending, creating, starting -> running -> stopping -> stopped -> deleted (a tombstone).
 * failed is over as well, keeps its container statuses, and needs a delete.
 */
export type MachineState =
  | "pending"
  | "creating"
  | "starting"
  | "running"
  | "stopping"
  | "stopped"
  | "failed"
  | "deleting"
  | "deleted";

export interface ContainerTermination {
  exit_code: number;
  signal?: number;
  reason: string;
  message?: string;
  oom_killed?: boolean;
  started_at?: string;
  finished_at: string;
  /** Id of the instance that ended. */
  id?: string;
}

export interface ContainerState {
  name: string;
  kind: "init" | "main" | "ephemeral";
  state: "waiting" | "running" | "terminated";
  /** While waiting: kubelet's words (`ImagePullBackOff`, `CrashLoopBackOff`, `ContainerCreating`...). */
  reason?: string;
  message?: string;
  ready: boolean;
  /** Startup probe passed and post_start done. */
  started: boolean;
  restart_count: number;
  image: string;
  image_id: string;
  /** Changes with every restart; absent before the first start. */
  id?: string;
  started_at?: string;
  /** Set while `state` is terminated. */
  terminated?: ContainerTermination;
  /** How the previous instance ended. */
  last?: ContainerTermination;
  resources?: ContainerResources;
  user?: { uid: number; gid: number; supplemental_groups: number[] };
}

export interface FileVersion {
  volume: string;
  version: string;
}

/** Something worth an event on the pod: kubelet's reasons and texts. */
export interface MachineNotice {
  at: string;
  type: "Normal" | "Warning";
  reason: string;
  message: string;
  container?: string;
  /** Identifies the notice within its machine; grows. */
  seq: number;
}

export interface Machine {
  id: string;
  /** Grows with every change of this machine. */
  version: number;
  /** The backend-wide revision of that change. */
  revision: number;
  labels: Record<string, string>;
  state: MachineState;
  reason?: string;
  message?: string;
  /** `unknown`: the backend cannot see the machine just now; its last status stands. */
  reachability: "ok" | "unknown";
  /** True once the machine's network and sandbox are up (kubelet: PodReadyToStartContainers). */
  sandbox_ready: boolean;
  created_at: string;
  started_at?: string;
  stopped_at?: string;
  deleted_at?: string;
  addresses: { ip: string }[];
  instance_type?: string;
  host?: string;
  containers: ContainerState[];
  /** Of each volume of files, the version that is in place. */
  file_versions?: FileVersion[];
  /**
   * Version of the registry credentials that the machine has for its next pull. Absent when it has none: a backend that
   * keeps credentials in memory only, as it should, loses them when it restarts, and is given them again.
   */
  registry_auth_version?: string;
  /** The last few notices, oldest first. */
  notices?: MachineNotice[];
}

/**
 * A machine that its backend named but did not describe in a way that can be believed: it exists, and its state is
 * unknown. The valid parts of the description are kept, so that its pod can still be deleted.
 */
export interface UnknownMachine {
  id: string;
  /** What is wrong with the description, for people. */
  reason: string;
  state?: MachineState;
  version?: number;
  /** Of the list or event that it came with; absent when it came in answer to a question about this machine. */
  revision?: number;
}

/** Only the fields that are present change. */
export interface MachinePatch {
  files?: { volume: string; version: string; files: FileEntry[] }[];
  containers?: { name: string; image: string }[];
  ephemeral_containers?: ContainerSpec[];
  /**
   * With `restart`, a container that runs is stopped and started with them, once: until then the machine shows what it
   * had, and the same change again does nothing more.
   */
  resources?: { container: string; resources: ContainerResources; restart?: boolean }[];
  registry_auth?: RegistryAuth[];
  /** Goes with `registry_auth`. */
  registry_auth_version?: string;
}

export const TERMINAL_STATES: readonly MachineState[] = ["stopped", "failed", "deleted"];

/** True when nothing of the machine runs any more. `deleting` is not enough: something may still be alive. */
export function isOver(machine: Pick<Machine, "state">): boolean {
  return TERMINAL_STATES.includes(machine.state);
}

/** True when the backend says for certain that nothing of the machine runs any more. */
export function isKnownOver({ state }: Pick<UnknownMachine, "state">): boolean {
  return state !== undefined && isOver({ state });
}

/** Version of the files of this volume that are in place in the machine; undefined when there are none yet. */
export function fileVersion({ file_versions }: Pick<Machine, "file_versions">, volume: string): string | undefined {
  return file_versions?.find((each) => each.volume === volume)?.version;
}

/** The versions with that of one volume replaced. */
export function withFileVersion(
  versions: readonly FileVersion[] = [],
  { volume, version }: FileVersion,
): FileVersion[] {
  return [...versions.filter((each) => each.volume !== volume), { volume, version }];
}
