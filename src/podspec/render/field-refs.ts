/**
 * The downward API: values of pod fields and of resources, for env and for files (pkg/fieldpath,
 * pkg/api/v1/resource/helpers.go). Messages are the kubelet's, because users read them in `kubectl describe`.
 */
import { containersOf } from "../../kube/pod.ts";
import type { Container, Pod } from "../../kube/wire.ts";
import { Quantity } from "../../resources/quantity.ts";
import { failure, type Result, success } from "../../util/result.ts";
import { isPodLevelResource, type ResourceList } from "../../resources/pod-resources.ts";

/** The machine's addresses are known only inside it, so these strings stand for them. */
export interface AddressTokens {
  pod_ip: string;
  pod_ips: string;
}

/** Strings that no other pod's values hold by accident, and neither of which contains the other. */
export function addressTokens(podUid: string): AddressTokens {
  return { pod_ip: `{{vmlet ${podUid} pod-ip}}`, pod_ips: `{{vmlet ${podUid} pod-ips}}` };
}

/** A `fieldRef` of an env variable. */
export function fieldValueForEnv(
  pod: Pod,
  ref: { readonly apiVersion?: string | undefined; readonly fieldPath: string },
  facts: { nodeName: string; hostIPs: readonly string[]; tokens: AddressTokens },
): Result<string> {
  const version = ref.apiVersion ?? "v1";
  if (version !== "v1") return failure(`unsupported pod version: ${version}`);
  switch (ref.fieldPath) {
    case "spec.nodeName":
    case "spec.host":
      return success(pod.spec?.nodeName ?? facts.nodeName);
    case "spec.serviceAccountName":
      return success(pod.spec?.serviceAccountName ?? "");
    case "status.hostIP":
      return success(facts.hostIPs[0] ?? "");
    case "status.hostIPs":
      return success(facts.hostIPs.join(","));
    case "status.podIP":
      return success(facts.tokens.pod_ip);
    case "status.podIPs":
      return success(facts.tokens.pod_ips);
    default:
      return fieldValue(pod, ref.fieldPath);
  }
}

/** A `fieldRef` of a file: the pod's metadata only. */
export function fieldValue(pod: Pod, fieldPath: string): Result<string> {
  const metadata = pod.metadata;
  const [, map, key] = /^(.+?)\['(.*)'\]$/s.exec(fieldPath) ?? [];
  if (map !== undefined && key !== undefined) return entryValue(pod, map, key, fieldPath);
  switch (fieldPath) {
    case "metadata.name":
      return success(metadata?.name ?? "");
    case "metadata.namespace":
      return success(metadata?.namespace ?? "");
    case "metadata.uid":
      return success(metadata?.uid ?? "");
    case "metadata.labels":
      return success(formatMap(metadata?.labels ?? {}));
    case "metadata.annotations":
      return success(formatMap(metadata?.annotations ?? {}));
    default:
      return failure(`unsupported fieldPath: ${fieldPath}`);
  }
}

/** `metadata.labels['KEY']` */
function entryValue({ metadata }: Pod, path: string, key: string, fieldPath: string): Result<string> {
  if (path !== "metadata.labels" && path !== "metadata.annotations")
    return failure(`fieldPath "${fieldPath}" does not support subscript`);
  const map = (path === "metadata.labels" ? metadata?.labels : metadata?.annotations) ?? {};
  return success(Object.hasOwn(map, key) ? (map[key] ?? "") : "");
}

interface ResourceRef {
  readonly containerName?: string | undefined;
  readonly resource: string;
  readonly divisor?: string | undefined;
}

type ResourceContainer = Pick<Container, "name" | "resources">;

/**
 * A `resourceFieldRef`: the amount divided by the divisor, rounded up. A missing limit is what the container could use
 * at most: the pod's limit, else what the node has; a missing request is 0.
 */
export function resourceValue(
  pod: Pod,
  container: ResourceContainer | undefined,
  ref: ResourceRef,
  allocatable: ResourceList,
): Result<string> {
  const named = ref.containerName ? containerNamed(pod, ref.containerName) : container;
  if (named === undefined) return failure(`container ${ref.containerName ?? ""} not found`);
  const match = /^(limits|requests)\.(cpu|memory|ephemeral-storage|hugepages-.+)$/.exec(ref.resource);
  if (!match) return failure(`unsupported container resource : ${ref.resource}`);
  const [, kind, name = ""] = match;
  const declared = Quantity.parse(named.resources?.[kind as "limits" | "requests"]?.[name] ?? "0");
  const isUnlimited = kind === "limits" && declared.isZero && !name.startsWith("hugepages-");
  const amount = isUnlimited ? effectiveLimit(pod, name, allocatable) : declared;
  const divisor = Quantity.parse(ref.divisor ?? "1");
  const by = divisor.isZero ? Quantity.of(1) : divisor;
  return success(
    String(name === "cpu" ? ratio(amount.milliValue(), by.milliValue()) : ratio(amount.value(), by.value())),
  );
}

function containerNamed(pod: Pod, name: string): ResourceContainer | undefined {
  return containersOf(pod).find((each) => each.name === name);
}

/** Of a container that has none of its own. */
function effectiveLimit(pod: Pod, name: string, allocatable: ResourceList): Quantity {
  const podLimit = isPodLevelResource(name) ? pod.spec?.resources?.limits?.[name] : undefined;
  return podLimit === undefined ? (allocatable.get(name) ?? Quantity.zero) : Quantity.parse(podLimit);
}

/** Rounded up. */
const ratio = (dividend: bigint, by: bigint): bigint => (dividend <= 0n ? dividend / by : (dividend + by - 1n) / by);

/** Any number of files may show the same map. */
const formatted = new WeakMap<Readonly<Record<string, string>>, string>();

/**
 * Sorted `key="value"` lines with Go's quoting, as the downward API writes whole label and annotation maps.
 * @internal
 */
export function formatMap(map: Readonly<Record<string, string>>): string {
  let text = formatted.get(map);
  if (text === undefined) {
    text = Object.entries(map)
      .sort(([a], [b]) => Buffer.compare(Buffer.from(a), Buffer.from(b)))
      .map(([key, value]) => `${key}=${quoteGo(value)}`)
      .join("\n");
    formatted.set(map, text);
  }
  return text;
}

const GO_ESCAPES: Readonly<Record<string, string>> = {
  "\x07": "\\a",
  "\b": "\\b",
  "\f": "\\f",
  "\n": "\\n",
  "\r": "\\r",
  "\t": "\\t",
  "\v": "\\v",
  "\\": "\\\\",
  '"': '\\"',
};

/**
 * Go's `strconv.Quote`: double quotes, escapes for control and unprintable characters, everything else as it is.
 * @internal
 */
export function quoteGo(text: string): string {
  let quoted = '"';
  for (const character of text) {
    const escape = GO_ESCAPES[character];
    if (escape !== undefined) quoted += escape;
    else if (isPrintable(character)) quoted += character;
    else quoted += escapeRune(character.codePointAt(0) ?? 0);
  }
  return `${quoted}"`;
}

/** Go's `unicode.IsPrint`: letters, marks, numbers, punctuation, symbols, and the ASCII space alone among spaces. */
function isPrintable(character: string): boolean {
  return character === " " || /^[\p{L}\p{M}\p{N}\p{P}\p{S}]$/u.test(character);
}

function escapeRune(rune: number): string {
  if (rune < 0x20 || rune === 0x7f) return `\\x${rune.toString(16).padStart(2, "0")}`;
  // A lone surrogate is not a character; Go sees the replacement character.
  if (rune >= 0xd800 && rune <= 0xdfff) return "\ufffd";
  return rune > 0xffff ? `\\U${rune.toString(16).padStart(8, "0")}` : `\\u${rune.toString(16).padStart(4, "0")}`;
}
