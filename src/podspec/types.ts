/**
 * What turning a pod into a machine's spec needs besides the pod, and what comes out. Rendering is a pure function of
 * these; other modules read the objects, ask for the tokens and know the node.
 */
import type { Capability } from "../provider/capabilities.ts";
import type { MachinePatch, MachineSpec, ReservedCapabilities, RuntimeHandler, Volume } from "../provider/machine.ts";
import type { VolumeClaim } from "../provider/volume.ts";
import type { ConfigMap, Pod, Secret, Service } from "../kube/wire.ts";
import type { ResourceList } from "../resources/pod-resources.ts";
import type { InstanceTypeRule } from "./admission/instance-types.ts";
import type { NfsVolume } from "./nfs-volume.ts";

/** A read of something named: there, said to be absent by the API server, or not known (anything else). */
export type Lookup<T> = { kind: "found"; object: T } | { kind: "absent" } | { kind: "unknown"; message: string };

type CsiVolume = Extract<Volume, { type: "csi" }>;
type HostVolume = Extract<Volume, { type: "host" }>;

/**
 * A persistent volume of the pod, once its machine may have it. `message`: why not, in a kubelet's words; absent while
 * nothing is wrong, and it is only not attached yet.
 */
export type DiskLookup =
  | {
      kind: "found";
      disk: Omit<VolumeClaim, "name"> | Omit<CsiVolume, "name"> | Omit<HostVolume, "name"> | NfsVolume;
      /** What its driver is told in secret. */
      secrets?: readonly string[] | undefined;
      /** As of a CsiLookup. */
      isStale?: boolean | undefined;
    }
  | {
      kind: "waiting";
      message?: string | undefined;
      /** The message is all that a kubelet says, and not why its claim cannot be had. */
      isWhole?: boolean | undefined;
    };

/**
 * An inline volume of a CSI driver, with all that the driver is told, and the tokens in it; `message` as of a
 * DiskLookup.
 */
export type CsiLookup =
  | {
      kind: "found";
      volume: Omit<CsiVolume, "name">;
      tokens: readonly string[];
      /** The driver wants to be asked to mount it again and again (CSIDriver.requiresRepublish), and is not. */
      isStale: boolean;
    }
  | { kind: "waiting"; message?: string | undefined };

export type PodClaim = NonNullable<MachineSpec["resource_claims"]>[number];

/** The pod's ResourceClaims, once its machine may have them; `message` as of a DiskLookup. */
export type ClaimsLookup = { kind: "found"; claims: PodClaim[] } | { kind: "waiting"; message?: string | undefined };

/** What the pod refers to, all in its own namespace. A name that is missing from a map counts as not read yet. */
export interface References {
  configMaps: ReadonlyMap<string, Lookup<ConfigMap>>;
  secrets: ReadonlyMap<string, Lookup<Secret>>;
  /** Services of the pod's namespace and of `default`; undefined until they have been listed once. */
  services: readonly Service[] | undefined;
  /** Tokens by `tokenKey`. */
  tokens: ReadonlyMap<string, Lookup<string>>;
  /** Trust anchors in PEM by `trustKey`; absent of none was found. */
  trustBundles?: ReadonlyMap<string, Lookup<string>> | undefined;
  /** Pod certificates by `CertificateWish.key`. */
  certificates?: ReadonlyMap<string, Lookup<CertificateBundle>> | undefined;
  /** Persistent volumes by their names in the pod. Absent: not looked at, for a machine that is there has its own. */
  disks?: ReadonlyMap<string, DiskLookup> | undefined;
  /** As `disks`. */
  claims?: ClaimsLookup | undefined;
  /** Inline volumes of CSI drivers, as `disks`. */
  csi?: ReadonlyMap<string, CsiLookup> | undefined;
}

export interface DnsSettings {
  /** Addresses of the cluster's DNS service; empty when there is none. */
  clusterDns: readonly string[];
  /** Usually `cluster.local`. */
  clusterDomain: string;
  /** What `dnsPolicy: Default` means: the node's own resolv.conf. */
  host: { nameservers: readonly string[]; searches: readonly string[]; options: readonly string[] };
}

export interface NodeFacts {
  /** Tells clusters apart that share one backend. */
  clusterId: string;
  nodeName: string;
  /** InternalIPs of the node, the first is `status.hostIP`. */
  hostIPs: readonly string[];
  allocatable: ResourceList;
  /** Extended resources that the Node has of somebody else's hand: no backend is asked for them. */
  othersResources?: ReadonlySet<string> | undefined;
  dns: DnsSettings;
  /** Whether hostPath may mean "a path in the pod's own machine". */
  allowHostPath: boolean;
  /** Which pods may choose which of the backend's sizes; undefined: any pod any size. */
  instanceTypes?: readonly InstanceTypeRule[] | undefined;
  /** Restart back-off of containers when it is not the usual 10 s doubling to 300 s. */
  backoff?: NonNullable<MachineSpec["backoff"]> | undefined;
}

export interface Backend {
  name: string;
  capabilities: ReadonlySet<Capability>;
  /** Probes are run by the agent, because the backend cannot but lets it reach the machines. */
  agentProbes?: boolean;
  /** Capabilities that only pods of some namespaces have. */
  reserved?: ReservedCapabilities | undefined;
  /** What a machine may name as its runtime. */
  runtimeHandlers?: readonly RuntimeHandler[] | undefined;
}

/** A service-account token that a projected volume wants. */
export interface TokenWish {
  /** Empty: the API server's own audience. */
  audience: string;
  expirationSeconds: number;
}

/** The key of a wish in `References.tokens`. */
export function tokenKey(wish: TokenWish): string {
  return `${wish.expirationSeconds}/${wish.audience}`;
}

/** The trust anchors that a projected volume wants: of one ClusterTrustBundle, or of a signer's with these labels. */
export type TrustWish =
  | { name: string }
  | {
      signerName: string;
      /** Undefined selects nothing, an empty one everything. */
      labelSelector: LabelSelector | undefined;
    };

/** The certificate that a source of a projected volume wants. */
export interface CertificateWish {
  /** Each source has its own: see `certificateKey`. */
  key: string;
  signerName: string;
  keyType: string;
  maxExpirationSeconds?: number | undefined;
  userAnnotations?: Readonly<Record<string, string>> | undefined;
}

/** Texts in PEM. */
export interface CertificateBundle {
  privateKey: string;
  /** The pod's certificate first. */
  chain: string;
}

interface LabelSelector {
  readonly matchLabels?: Readonly<Record<string, string>>;
  readonly matchExpressions?: readonly {
    readonly key: string;
    readonly operator: string;
    readonly values?: readonly string[];
  }[];
}

/** The key of a wish in `References.trustBundles`. */
export function trustKey(wish: TrustWish): string {
  return JSON.stringify("name" in wish ? [wish.name] : [wish.signerName, wish.labelSelector]);
}

export interface PodEvent {
  type: "Normal" | "Warning";
  reason: string;
  message: string;
  /** `spec.containers{name}`, when it is about one container. */
  fieldPath?: string | undefined;
}

/** Why a container cannot be started yet. */
export interface WaitingContainer {
  reason: string;
  message: string;
}

export type RenderResult =
  /** `waiting`: ephemeral containers that cannot be started and are left out. */
  | { kind: "ready"; spec: MachineSpec; events: PodEvent[]; waiting?: ReadonlyMap<string, WaitingContainer> }
  /**
   * Something that the pod refers to is missing or could not be read: try again when it changes. `waiting` holds the
   * containers at fault by name; when a volume is at fault it is empty, as with a kubelet, and `unmountedVolumes` is
   * not.
   */
  | { kind: "wait"; waiting: ReadonlyMap<string, WaitingContainer>; unmountedVolumes: string[]; events: PodEvent[] }
  /** There is room once these pods are gone: they are to fail, and the create to be tried again. */
  | { kind: "preempt"; victims: readonly Pod[] }
  /** The pod can never run here. The message names the fields. */
  | { kind: "reject"; reason: string; message: string; missing?: readonly string[] };

/** As `RenderResult`, with the `version` of everything that it was made from, as that was when it had been read. */
export type Rendered =
  | Exclude<RenderResult, { kind: "ready" }>
  | (Extract<RenderResult, { kind: "ready" }> & { version: string | undefined });

/** What must change on a machine that runs. */
export interface MachineChange {
  /** Undefined when nothing must. */
  patch: MachinePatch | undefined;
  events: PodEvent[];
  /** What becomes of the resources that it asks for. */
  resize: ResizeOutlook;
  /** Ephemeral containers that cannot be started. */
  waiting?: ReadonlyMap<string, WaitingContainer>;
  /** As of `Rendered`. */
  version: string | undefined;
}

/** What is to become of a change of cpu or memory that a running pod asks for. */
export type ResizeOutlook =
  | { kind: "none" }
  /** The machine's patch asks for it. `text` is the JSON of the events: what is asked for, and the generation. */
  | { kind: "go"; text: string }
  | { kind: "pending"; reason: "Infeasible" | "Deferred"; message: string; text: string };
