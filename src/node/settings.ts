/**
 * What the node's parts know of it: settings from the configuration that stay while the agent runs, and what the
 * backend reports of itself, which may change with each report.
 */
import type { Capability } from "../provider/capabilities.ts";
import type { RuntimeHandler } from "../provider/machine.ts";
import type { Taint } from "../resources/labels.ts";

/** One virtual node, as configured. */
export interface NodeSettings {
  name: string;
  /** Tells clusters apart; part of the providerID and of the node's stable ids. */
  clusterId: string;
  /** vmlet's own version, without `v`. */
  version: string;
  /** InternalIPs, the primary one first. */
  addresses: readonly string[];
  /**
   * Published as the Hostname address only when set: API servers with default flags dial that address first, so it has
   * to resolve there. The label kubernetes.io/hostname is this or the node's name.
   */
  hostname?: string | undefined;
  /** Added to the standard labels, and winning over them. */
  labels?: Readonly<Record<string, string>> | undefined;
  annotations?: Readonly<Record<string, string>> | undefined;
  /** Only a new Node gets them: NodeRestriction forbids a node to change its taints later. */
  taints?: readonly Taint[] | undefined;
  /** Port of the kubelet API that the API server dials. */
  kubeletPort: number;
  /** Whose agents answer for the node: `namespace/name` of their election, or else where their machines are. */
  release?: string | undefined;
  /** Whether there may be another agent of it that goes on when this one ends. */
  isReleaseElected?: boolean | undefined;
  /** Answer for it although another release's agents do. */
  takeOver?: boolean | undefined;
  /** How long the node stays Ready while its backend does not answer. Default 10 minutes. */
  backendOutageGraceMs?: number | undefined;
}

/** What the backend says of itself, as of one moment. */
export interface BackendReport {
  /** The provider's name, and its version once it has told it: the container runtime of the node. */
  runtime: { name: string; version: string | undefined };
  /** What the backend says that it can do, once it has; decides which features the node declares, and labels. */
  capabilities?: readonly Capability[] | undefined;
  /** What RuntimeClasses may lead to there, once it has said what it can do; undefined when there is no choice. */
  runtimeHandlers?: readonly RuntimeHandler[] | undefined;
  /** Whether the machines' host is inside a user namespace, once it has said so. */
  runningInUserNamespace?: boolean | undefined;
  /** Of volumes that outlive machines, once it has said that it has them: where they are, and how many there may be. */
  volumes?: { zone?: string | undefined; count?: number | undefined } | undefined;
  /** Default linux/amd64. */
  platform?: Platform | undefined;
}

/** All that describes a Node at one moment. */
export type NodeDescription = NodeSettings & BackendReport;

/** What the machines' programs are built for, in Go's words. */
export interface Platform {
  os: string;
  architecture: string;
  /** The backend has not said yet, and may: until then a Node that is there keeps its own. */
  assumed?: boolean;
}

/** What is known of the machine backend. */
export interface BackendHealth {
  /** Monotonic time since which it has not answered, in milliseconds; undefined while it answers. */
  readonly failingSince: number | undefined;
  readonly lastError: string | undefined;
  /** False until it has answered for the first time. Default true. */
  readonly seen?: boolean;
  /**
   * Machines that it lacks although pods of this node ran on them; set when there are so many that it is not believed
   * yet.
   */
  readonly missing?: number;
}
