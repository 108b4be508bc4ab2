/**
 * A pod's volumes as a machine's volumes. Files come with their contents; the machine writes them in the atomic
 * `..data` layout. As in a kubelet, only volumes that some container mounts are looked at.
 */
import { createHash } from "node:crypto";
import type { ConfigMap, Pod, Secret } from "../../kube/wire.ts";
import type { FileEntry, PullPolicy, Volume } from "../../provider/machine.ts";
import { Quantity } from "../../resources/quantity.ts";
import { isFullyLimited, podLimits } from "../../resources/pod-resources.ts";
import { success } from "../../util/result.ts";
import { Budget, OverBudgetError, POD_LIMITS, shortened } from "../budget.ts";
import { nfsVolume } from "../nfs-volume.ts";
import { missingMessage } from "./env.ts";
import { fieldValue, resourceValue } from "./field-refs.ts";
import { tokenKey, trustKey, type CertificateBundle, type Lookup, type NodeFacts, type References } from "../types.ts";
import { cleanPath, filePathProblem } from "./paths.ts";
import { sharedUser } from "./security.ts";
import { certificateKey, type PodVolume, tokenWish, trustWish, type VolumeKind, volumeKind } from "../pod-volumes.ts";

const DEFAULT_MODE = 0o644;

/** Without a message nothing is wrong: it is only to be waited for. */
type VolumeResult =
  | { ok: true; volume: Volume }
  | {
      ok: false;
      message?: string | undefined;
      /** It is the whole of what an event says. */
      isWhole?: boolean | undefined;
    };

/**
 * Renders one volume of a supported kind. The message of a failure is the kubelet's, where it has one.
 *
 * @param budget of the files of all the pod's volumes
 */
export function renderVolume(
  pod: Pod,
  volume: PodVolume,
  references: References,
  node: NodeFacts,
  budget = new Budget("the files of the volume", POD_LIMITS.fileBytes),
): VolumeResult {
  const name = volume.name;
  switch (volumeKind(volume) as VolumeKind) {
    case "emptyDir":
      return { ok: true, volume: emptyDir(pod, volume, node) };
    case "image":
      return { ok: true, volume: image(volume) };
    case "hostPath":
      return { ok: true, volume: hostPath(volume) };
    case "nfs":
      return { ok: true, volume: { name, ...nfsVolume(volume.nfs!) } };
    case "persistentVolumeClaim":
    case "ephemeral":
      return persistent(name, references);
    case "csi":
      return inlineCsi(name, references);
    case "configMap":
    case "secret":
    case "downwardAPI":
    case "projected": {
      const files = volumeFiles(pod, volume, references, node, budget);
      return files.ok
        ? { ok: true, volume: { name, type: "files", version: filesVersion(files.files), files: files.files } }
        : files;
    }
  }
}

/** A hostPath as a path of the backend's host; any other volume as it is. */
export function asHosts(volume: Volume): Volume {
  if (volume.type !== "host_path") return volume;
  const { path_type, ...rest } = volume;
  // The API server admits no other type.
  const type = path_type as Extract<Volume, { type: "host" }>["path_type"];
  return { ...rest, type: "host", ...(type !== undefined && { path_type: type }) };
}

/**
 * Short hash of everything that a program in the machine could tell apart.
 * @internal
 */
export function filesVersion(files: readonly FileEntry[]): string {
  const hash = createHash("sha256");
  for (const file of files) hash.update(JSON.stringify([file.path, file.mode, file.uid ?? null, file.content_b64]));
  return hash.digest("hex").slice(0, 16);
}

type Files = { ok: true; files: FileEntry[] } | { ok: false; message: string };

/** Besides its path and its contents, what a file takes in JSON. */
const FILE_OVERHEAD = 64;

function volumeFiles(pod: Pod, volume: PodVolume, references: References, node: NodeFacts, budget: Budget): Files {
  try {
    return collectFiles(pod, volume, references, node, budget);
  } catch (thrown) {
    if (thrown instanceof OverBudgetError) return { ok: false, message: thrown.message };
    throw thrown;
  }
}

/**
 * Files of a configMap, secret, downwardAPI or projected volume, sorted by path. Later sources replace earlier files.
 *
 * @throws OverBudgetError
 */
function collectFiles(pod: Pod, volume: PodVolume, references: References, node: NodeFacts, budget: Budget): Files {
  const tree = new Map<string, FileEntry>();
  const problems: string[] = [];
  const put: Put = (path, content, entry) => {
    budget.take(path.length + content.length + FILE_OVERHEAD);
    const problem = filePathProblem(path);
    if (problem !== undefined) problems.push(problem);
    else tree.set(cleanPath(path), { path: cleanPath(path), ...entry, content_b64: content.encode() });
  };
  const defaultMode =
    (volume.projected ?? volume.configMap ?? volume.secret ?? volume.downwardAPI)?.defaultMode ?? DEFAULT_MODE;
  for (const [index, source] of sourcesOf(volume).entries()) {
    if (source.configMap)
      problems.push(...putKeys("configmap", source.configMap, references.configMaps, defaultMode, put));
    else if (source.secret) problems.push(...putKeys("secret", source.secret, references.secrets, defaultMode, put));
    else if (source.downwardAPI) problems.push(...putFields(pod, source.downwardAPI, node, defaultMode, put));
    else if (source.serviceAccountToken)
      problems.push(...putToken(pod, source.serviceAccountToken, references, defaultMode, put));
    else if (source.clusterTrustBundle)
      problems.push(...putTrustBundle(pod, source.clusterTrustBundle, references, defaultMode, put));
    else if (source.podCertificate) {
      const found = references.certificates?.get(certificateKey(volume.name, index));
      problems.push(...putCertificate(source.podCertificate, found, ownersEntry(pod, defaultMode), put));
    }
  }
  problems.push(...nestingProblems(tree));
  if (problems.length > 0) return { ok: false, message: aggregate(problems) };
  const files = [...tree.values()].sort((a, b) => (a.path < b.path ? -1 : 1));
  return { ok: true, files: files.map((file) => ({ ...file, mode: file.mode & 0o777 })) };
}

interface KeyItem {
  readonly key: string;
  readonly path: string;
  readonly mode?: number | undefined;
}

interface KeySource {
  readonly name?: string | undefined;
  readonly optional?: boolean | undefined;
  readonly items?: readonly KeyItem[] | undefined;
}

interface Source {
  readonly configMap?: KeySource | undefined;
  readonly secret?: KeySource | undefined;
  readonly downwardAPI?: FieldSource | undefined;
  readonly serviceAccountToken?: TokenSource | undefined;
  readonly clusterTrustBundle?: TrustSource | undefined;
  readonly podCertificate?: CertificateSource | undefined;
}

interface CertificateSource {
  readonly credentialBundlePath?: string;
  readonly keyPath?: string;
  readonly certificateChainPath?: string;
}

interface FieldSource {
  readonly items?: NonNullable<PodVolume["downwardAPI"]>["items"];
}

interface TokenSource {
  readonly audience?: string;
  readonly expirationSeconds?: number;
  readonly path: string;
}

type TrustSource = Parameters<typeof trustWish>[0];

/** Adds a file to the volume. @throws OverBudgetError */
type Put = (path: string, content: Content, entry: { mode: number; uid?: number }) => void;

function sourcesOf(volume: PodVolume): readonly Source[] {
  if (volume.projected) return volume.projected.sources ?? [];
  const secret = volume.secret && { ...volume.secret, name: volume.secret.secretName };
  return [{ configMap: volume.configMap, secret, downwardAPI: volume.downwardAPI }];
}

/** The downward API's files; returns what is wrong. */
function putFields(pod: Pod, source: FieldSource, node: NodeFacts, defaultMode: number, put: Put): string[] {
  return (source.items ?? []).flatMap((item) => {
    const value = item.fieldRef
      ? fieldValue(pod, item.fieldRef.fieldPath)
      : item.resourceFieldRef
        ? resourceValue(pod, undefined, item.resourceFieldRef, node.allocatable)
        : success("");
    if (!value.ok) return [value.message];
    put(item.path, contentOf(value.value), { mode: item.mode ?? defaultMode });
    return [];
  });
}

/** The service account's token; returns what is wrong. */
function putToken(pod: Pod, source: TokenSource, references: References, defaultMode: number, put: Put): string[] {
  const token = references.tokens.get(tokenKey(tokenWish(source)));
  if (token?.kind !== "found") {
    const why =
      token === undefined ? "not read yet" : token.kind === "unknown" ? token.message : "serviceaccount not found";
    return [`failed to fetch token: ${why}`];
  }
  put(source.path, contentOf(token.object), ownersEntry(pod, defaultMode));
  return [];
}

/** Whose a file is that the kubelet gives to the pod's user, and its mode. */
function ownersEntry(pod: Pod, defaultMode: number): { mode: number; uid?: number } {
  // With fsGroup the ownership pass of the volume widens 0600 to 0640.
  const user = sharedUser(pod);
  const isPrivate = user !== undefined || pod.spec?.securityContext?.fsGroup !== undefined;
  return { mode: isPrivate ? 0o600 : defaultMode, ...(user !== undefined && { uid: user }) };
}

/** The trust anchors of one source; returns what is wrong. */
function putTrustBundle(
  pod: Pod,
  source: TrustSource,
  references: References,
  defaultMode: number,
  put: Put,
): string[] {
  const wish = trustWish(source);
  if (wish === undefined) return ["ClusterTrustBundle projection requires either name or signerName to be set"];
  const found = references.trustBundles?.get(trustKey(wish)) ?? { kind: "unknown" as const, message: "not read yet" };
  if (found.kind === "unknown") return [`while getting ClusterTrustBundle: ${found.message}`];
  if (found.kind === "absent" && !source.optional)
    return [
      "name" in wish
        ? `while getting ClusterTrustBundle: clustertrustbundle.certificates.k8s.io "${wish.name}" not found`
        : "combination of signerName and labelSelector matched zero ClusterTrustBundles",
    ];
  const anchors = found.kind === "found" ? found.object : "";
  put(source.path, contentOf(anchors), ownersEntry(pod, defaultMode));
  return [];
}

/** The pod's certificate and its key, in one file or in two; returns what is wrong. */
function putCertificate(
  source: CertificateSource,
  found: Lookup<CertificateBundle> | undefined,
  entry: { mode: number; uid?: number },
  put: Put,
): string[] {
  if (found?.kind !== "found") return [found?.kind === "unknown" ? found.message : "not asked for yet"];
  const { privateKey, chain } = found.object;
  if (source.credentialBundlePath) put(source.credentialBundlePath, contentOf(privateKey + chain), entry);
  if (source.keyPath) put(source.keyPath, contentOf(privateKey), entry);
  if (source.certificateChainPath) put(source.certificateChainPath, contentOf(chain), entry);
  return [];
}

/** Puts the keys of a configMap or secret, all or those that `items` names; returns what is wrong. */
function putKeys(
  kind: "configmap" | "secret",
  source: KeySource,
  objects: ReadonlyMap<string, Lookup<ConfigMap | Secret>>,
  defaultMode: number,
  put: Put,
): string[] {
  const name = source.name ?? "";
  const optional = source.optional ?? false;
  const found = objects.get(name) ?? { kind: "unknown" as const, message: "not read yet" };
  if (found.kind === "unknown") return [missingMessage(kind, name, found)];
  if (found.kind === "absent") return optional ? [] : [missingMessage(kind, name, found)];

  const contents = contentsOf(kind, found.object);
  const items = source.items ?? [];
  if (items.length === 0) {
    for (const key of contents.keys) put(key, contents.get(key) ?? contentOf(""), { mode: defaultMode });
    return [];
  }
  const problems: string[] = [];
  for (const item of items) {
    const content = contents.get(item.key);
    if (content !== undefined) put(item.path, content, { mode: item.mode ?? defaultMode });
    else if (!optional) {
      problems.push(
        kind === "configmap"
          ? `configmap references non-existent config key: ${item.key}`
          : `references non-existent secret key: ${item.key}`,
      );
    }
  }
  return problems;
}

/** What a file is to hold. It is encoded when there is room for it: a large object may be named any number of times. */
interface Content {
  /** Of the encoded text. */
  readonly length: number;
  encode(): string;
}

const contentOf = (text: string): Content => ({
  length: 4 * Math.ceil(Buffer.byteLength(text) / 3),
  encode: () => Buffer.from(text).toString("base64"),
});
const encodedContent = (base64: string): Content => ({ length: base64.length, encode: () => base64 });

/** What an object holds, by key. */
function contentsOf(kind: "configmap" | "secret", object: ConfigMap | Secret) {
  const data: Readonly<Record<string, string>> = object.data ?? {};
  const binary: Readonly<Record<string, string>> = (kind === "configmap" && (object as ConfigMap).binaryData) || {};
  const content = kind === "configmap" ? contentOf : encodedContent;
  return {
    keys: [...new Set([...Object.keys(data), ...Object.keys(binary)])],
    get(key: string): Content | undefined {
      if (Object.hasOwn(data, key)) return content(data[key] ?? "");
      return Object.hasOwn(binary, key) ? encodedContent(binary[key] ?? "") : undefined;
    },
  };
}

/** A path cannot be a file and a directory at once. */
function nestingProblems(tree: ReadonlyMap<string, unknown>): string[] {
  const problems: string[] = [];
  // With the separator before every other character, what lies under a path comes right after it.
  const sorted = [...tree.keys()].map((path) => path.replaceAll("/", "\0")).sort();
  let parent: string | undefined;
  for (const path of sorted) {
    if (parent !== undefined && path.startsWith(`${parent}\0`)) {
      const [child, file] = [path, parent].map((each) => each.replaceAll("\0", "/"));
      problems.push(`invalid path: ${child}: ${file} is a file`);
    } else parent = path;
  }
  return problems;
}

/** Go's `utilerrors.NewAggregate`: one message alone, several in brackets, each once. */
function aggregate(messages: readonly string[]): string {
  const unique = [...new Set(messages)];
  return shortened(unique.length === 1 ? (unique[0] ?? "") : `[${unique.slice(0, 25).join(", ")}]`);
}

function persistent(name: string, { disks }: References): VolumeResult {
  const found = disks?.get(name);
  return found?.kind === "found"
    ? { ok: true, volume: { name, ...found.disk } }
    : { ok: false, message: found?.message, isWhole: found?.isWhole };
}

function image({ name, image }: PodVolume): Volume {
  const policy = pullPolicy(image?.pullPolicy);
  return { name, type: "image", image: image?.reference ?? "", ...(policy && { pull_policy: policy }) };
}

function hostPath({ name, hostPath }: PodVolume): Volume {
  const { path = "", type } = hostPath ?? {};
  return { name, type: "host_path", path, ...(type && { path_type: type }) };
}

function inlineCsi(name: string, { csi }: References): VolumeResult {
  const found = csi?.get(name);
  return found?.kind === "found"
    ? { ok: true, volume: { name, ...found.volume } }
    : { ok: false, message: found?.message };
}

function emptyDir(pod: Pod, volume: PodVolume, node: NodeFacts): Volume {
  const medium = volume.emptyDir?.medium === "Memory" ? "memory" : "disk";
  const limit = volume.emptyDir?.sizeLimit === undefined ? undefined : Quantity.parse(volume.emptyDir.sizeLimit);
  let size = limit !== undefined && limit.nano > 0n ? limit : undefined;
  if (medium === "memory") {
    // A memory volume can never be larger than what the pod may use.
    const spec = pod.spec;
    const podLimit = spec && isFullyLimited(spec, "memory") ? podLimits(spec).get("memory") : undefined;
    for (const bound of [podLimit, node.allocatable.get("memory")]) {
      if (bound !== undefined && bound.nano > 0n && (size === undefined || bound.compare(size) < 0)) size = bound;
    }
  }
  return { name: volume.name, type: "empty_dir", medium, ...(size && { size_bytes: size.toNumber() }) };
}

const PULL_POLICIES: ReadonlyMap<string, PullPolicy> = new Map([
  ["Always", "always"],
  ["IfNotPresent", "if_not_present"],
  ["Never", "never"],
]);

/** `Always`, `IfNotPresent`, `Never` in the machine's spelling. */
export function pullPolicy(policy: string | undefined): PullPolicy | undefined {
  return policy === undefined ? undefined : PULL_POLICIES.get(policy);
}
