/**
 * Kubernetes objects as they travel: client-node's models say `Date` where JSON has a string, so `Wire` maps that back.
 * Objects in caches are raw JSON, never client-node instances, and readonly by type rather than by copying.
 */
import type {
  ResourceV1ResourceClaim,
  V1ConfigMap,
  V1Container,
  V1ContainerStatus,
  V1CSIDriver,
  V1CSINode,
  V1EndpointSlice,
  V1Lease,
  V1Node,
  V1ObjectMeta,
  V1PersistentVolume,
  V1PersistentVolumeClaim,
  V1Pod,
  V1PodCondition,
  V1PodStatus,
  V1Secret,
  V1Service,
  V1VolumeAttachment,
} from "@kubernetes/client-node";

export type Wire<T> = T extends Date
  ? string
  : T extends (infer U)[]
    ? Wire<U>[]
    : T extends object
      ? { [K in keyof T]: Wire<T[K]> }
      : T;

type DeepReadonly<T> = T extends (infer U)[]
  ? readonly DeepReadonly<U>[]
  : T extends object
    ? { readonly [K in keyof T]: DeepReadonly<T[K]> }
    : T;

type ObjectMeta = DeepReadonly<Wire<V1ObjectMeta>>;
export type Pod = DeepReadonly<Wire<V1Pod>>;
export type PodStatus = DeepReadonly<Wire<V1PodStatus>>;
export type PodCondition = DeepReadonly<Wire<V1PodCondition>>;
export type Container = DeepReadonly<Wire<V1Container>>;
export type ContainerStatus = DeepReadonly<Wire<V1ContainerStatus>>;
export type Node = DeepReadonly<Wire<V1Node> & { status?: { nodeInfo?: NodeInfoOf137 } }>;
/** Newer than client-node's models. */
interface NodeInfoOf137 {
  runningInUserNamespace?: boolean;
}
export type Lease = DeepReadonly<Wire<V1Lease>>;
export type ConfigMap = DeepReadonly<Wire<V1ConfigMap>>;
export type Secret = DeepReadonly<Wire<V1Secret>>;
export type Service = DeepReadonly<Wire<V1Service>>;
export type EndpointSlice = DeepReadonly<Wire<V1EndpointSlice>>;
export type PersistentVolumeClaim = DeepReadonly<Wire<V1PersistentVolumeClaim>>;
export type PersistentVolume = DeepReadonly<Wire<V1PersistentVolume>>;
export type VolumeAttachment = DeepReadonly<Wire<V1VolumeAttachment>>;
export type ResourceClaim = DeepReadonly<Wire<ResourceV1ResourceClaim>>;
export type CsiDriver = DeepReadonly<Wire<V1CSIDriver>>;
export type CsiNode = DeepReadonly<Wire<V1CSINode>>;

/** Anything that the API server stores. */
export interface KubeObject {
  readonly apiVersion?: string | undefined;
  readonly kind?: string | undefined;
  readonly metadata?: ObjectMeta | undefined;
}
