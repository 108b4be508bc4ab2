/**
 * (pure) One file of the folder of static pods, read as a kubelet reads it (pkg/kubelet/config/common.go): the pod that
 * the API server gets of it, or why there is none. A file is anybody's who may write the folder: nothing is believed of
 * its shape.
 */
import { createHash } from "node:crypto";
import { controllerOf } from "../kube/pod.ts";
import type { Pod } from "../kube/wire.ts";
import { readYaml } from "./static-pod-yaml.ts";

/** kubelet: pkg/kubelet/types (pod_update.go). */
const SOURCE = "kubernetes.io/config.source";
const HASH = "kubernetes.io/config.hash";
const MIRROR = "kubernetes.io/config.mirror";
/** Which file of the folder the pod is of. A kubelet needs none: to it, a file that it cannot read is no file. */
const FILE = "vmlet.dev/static-pod-file";

export interface StaticPod {
  namespace: string;
  name: string;
  /** Differs when anything does that the pod is made of. */
  hash: string;
  metadata: object;
  spec: object;
}

export type StaticPodFile = { kind: "pod"; pod: StaticPod } | { kind: "fault"; fault: string };

/** By what it is told of a pod that it is one of this node's own, and of which file. */
interface MirrorOf {
  file: string;
  hash: string;
}

/** Whether a node made the pod of a file of its own: nobody drains it, for it would come again. */
export function isMirrorPod({ metadata }: Pick<Pod, "metadata">): boolean {
  return metadata?.annotations?.[MIRROR] !== undefined;
}

/** Undefined for a pod that this node has not made of a file. */
export function mirrorOf(pod: Pod, nodeName: string): MirrorOf | undefined {
  const { [MIRROR]: hash, [FILE]: file } = pod.metadata?.annotations ?? {};
  const owner = controllerOf(pod);
  const isOwn = owner?.apiVersion === "v1" && owner.kind === "Node" && owner.name === nodeName;
  return isOwn && hash !== undefined && file !== undefined ? { file, hash } : undefined;
}

/** What NodeRestriction lets a node create: bound to it, owned by it, and marked as a mirror. */
export function mirrorPod({ metadata, spec }: StaticPod, node: { name: string; uid: string }): object {
  const owner = { apiVersion: "v1", kind: "Node", name: node.name, uid: node.uid, controller: true };
  return { apiVersion: "v1", kind: "Pod", metadata: { ...metadata, ownerReferences: [owner] }, spec };
}

/** @param at.path the file's path, which is part of what the pod is known by */
export function readStaticPod(text: string, at: { file: string; path: string; nodeName: string }): StaticPodFile {
  const fault = (words: string): StaticPodFile => ({ kind: "fault", fault: words });
  const yaml = readYaml(text);
  if (yaml.kind === "fault") return yaml;
  const { value: parsed } = yaml;
  if (!isMapping(parsed))
    return fault("holds no pod; write one, with apiVersion, kind, metadata and spec, or remove it");
  const { apiVersion, kind, metadata, spec } = parsed;
  if (apiVersion !== "v1" || kind !== "Pod")
    return fault("apiVersion, kind: must be v1 and Pod; give each pod a file of its own");
  if (!isMapping(metadata) || typeof metadata["name"] !== "string" || metadata["name"] === "")
    return fault("metadata.name: is required; name the pod");
  if (!isMapping(spec)) return fault("spec: is required; say what the pod runs");
  const malformed = ["labels", "annotations"].find((each) => !isMapping(metadata[each] ?? {}));
  if (malformed !== undefined) return fault(`metadata.${malformed}: must be a mapping; correct it`);
  const namespace = metadata["namespace"] ?? "default";
  if (typeof namespace !== "string" || namespace === "") return fault("metadata.namespace: must be a name; correct it");
  const tolerations = spec["tolerations"] ?? [];
  if (!Array.isArray(tolerations)) return fault("spec.tolerations: must be a list; correct it");
  const [refused] = references(spec);
  if (refused !== undefined)
    return fault(
      `${refused.field}: a static pod may not refer to ${refused.what}, which its node has no right to give it; remove the field, or make it a pod of the API server's own`,
    );
  const hash = createHash("sha256")
    .update(JSON.stringify([parsed, at.nodeName, at.path], sortedKeys))
    .digest("hex")
    .slice(0, 32);
  const name = `${metadata["name"]}-${at.nodeName.toLowerCase()}`;
  const pod: StaticPod = {
    namespace,
    name,
    hash,
    metadata: {
      name,
      namespace,
      labels: metadata["labels"],
      annotations: {
        ...(metadata["annotations"] as object | undefined),
        [SOURCE]: "file",
        [HASH]: hash,
        [MIRROR]: hash,
        [FILE]: at.file,
      },
    },
    spec: { ...spec, nodeName: at.nodeName, tolerations: tolerating(tolerations) },
  };
  return { kind: "pod", pod };
}

/** So that no trouble of the node's evicts it. */
function tolerating(tolerations: readonly unknown[]): unknown[] {
  const isSame = (each: unknown) =>
    isMapping(each) && each["effect"] === "NoExecute" && each["operator"] === "Exists" && !each["key"];
  return [...tolerations.filter((each) => !isSame(each)), { operator: "Exists", effect: "NoExecute" }];
}

interface Reference {
  field: string;
  what: string;
}

/** What NodeRestriction refuses of a mirror pod (HasAPIObjectReference of pkg/api/pod). */
function* references(spec: Mapping): Generator<Reference> {
  for (const field of ["serviceAccountName", "serviceAccount"])
    if (spec[field] !== undefined && spec[field] !== "") yield { field: `spec.${field}`, what: "service accounts" };
  if (listOf(spec["imagePullSecrets"]).length > 0) yield { field: "spec.imagePullSecrets", what: "secrets" };
  if (listOf(spec["resourceClaims"]).length > 0) yield { field: "spec.resourceClaims", what: "resource claims" };
  for (const kind of ["initContainers", "containers", "ephemeralContainers"])
    for (const [index, container] of listOf(spec[kind]).entries())
      yield* ofContainer(container, `spec.${kind}[${index}]`);
  for (const [index, volume] of listOf(spec["volumes"]).entries()) yield* ofVolume(volume, `spec.volumes[${index}]`);
}

function* ofContainer(container: Mapping, at: string): Generator<Reference> {
  const kinds = (source: unknown, suffix: string, field: string): Reference[] =>
    Object.entries({ secret: "secrets", configMap: "configMaps" })
      .filter(([kind]) => isMapping(source) && source[kind + suffix] !== undefined)
      .map(([kind, what]) => ({ field: `${field}.${kind}${suffix}`, what }));
  for (const [index, source] of listOf(container["envFrom"]).entries())
    yield* kinds(source, "Ref", `${at}.envFrom[${index}]`);
  for (const [index, variable] of listOf(container["env"]).entries())
    yield* kinds(variable["valueFrom"], "KeyRef", `${at}.env[${index}].valueFrom`);
}

const VOLUME_KINDS: Readonly<Record<string, string>> = {
  configMap: "configMaps",
  secret: "secrets",
  csi: "CSI drivers",
  glusterfs: "endpoints",
  persistentVolumeClaim: "persistentVolumeClaims",
  ephemeral: "persistentVolumeClaims",
  azureFile: "secrets",
};
const PROJECTED_KINDS: Readonly<Record<string, string>> = {
  configMap: "configMaps",
  secret: "secrets",
  serviceAccountToken: "service accounts",
  clusterTrustBundle: "trust bundles",
  podCertificate: "pod certificates",
};

function* ofVolume(volume: Mapping, at: string): Generator<Reference> {
  for (const [kind, source] of Object.entries(volume)) {
    const what = VOLUME_KINDS[kind];
    if (what !== undefined && source !== undefined) yield { field: `${at}.${kind}`, what };
    if (!isMapping(source)) continue;
    if (isMapping(source["secretRef"])) yield { field: `${at}.${kind}.secretRef`, what: "secrets" };
    if (kind !== "projected") continue;
    for (const [index, projection] of listOf(source["sources"]).entries())
      for (const name of Object.keys(projection)) {
        const projected = PROJECTED_KINDS[name];
        if (projected !== undefined) yield { field: `${at}.projected.sources[${index}].${name}`, what: projected };
      }
  }
}

type Mapping = Record<string, unknown>;

const isMapping = (value: unknown): value is Mapping =>
  typeof value === "object" && value !== null && !Array.isArray(value);

/** The mappings of a list; what is something else, the API server refuses. */
const listOf = (value: unknown): Mapping[] =>
  Array.isArray(value) ? value.map((each) => (isMapping(each) ? each : {})) : [];

/** Another order of its keys makes no other pod. */
function sortedKeys(_key: string, value: unknown): unknown {
  return isMapping(value) ? Object.fromEntries(Object.entries(value).toSorted(([a], [b]) => (a < b ? -1 : 1))) : value;
}
