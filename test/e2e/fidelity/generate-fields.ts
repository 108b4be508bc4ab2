/**
 * Writes src/devcluster/objects/fields.gen.ts: what Go's struct tags say about the API's types and client-node's models do not:
 * protobuf field numbers, what is written when it is empty, merge keys. Run by hand when Kubernetes' version changes:
 *
 *     (cd test/e2e/controlplane && go mod download k8s.io/api k8s.io/apimachinery)
 *     node test/e2e/fidelity/generate-fields.ts
 */
import { execFileSync } from "node:child_process";
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import * as models from "@kubernetes/client-node";

const controlplane = join(import.meta.dirname, "../controlplane");
const moduleDir = (name: string) =>
  execFileSync("go", ["list", "-m", "-f", "{{.Dir}}", name], { cwd: controlplane, encoding: "utf8" }).trim();
const api = moduleDir("k8s.io/api");
const meta = join(moduleDir("k8s.io/apimachinery"), "pkg/apis/meta/v1");

/** In this order: a name that two packages have belongs to the first. */
const packages = [
  join(api, "core/v1"),
  meta,
  ...[
    "coordination/v1",
    "storage/v1",
    "certificates/v1",
    "node/v1",
    "scheduling/v1",
    "authentication/v1",
    "authorization/v1",
    "policy/v1",
    "apps/v1",
    "batch/v1",
    "autoscaling/v2",
    "autoscaling/v1",
    "discovery/v1",
  ].map((path) => join(api, path)),
];

interface GoField {
  json: string;
  type: string;
  omitempty: boolean;
  number: number | undefined;
  inline: boolean;
  mergeKey: string | undefined;
  applyKey: string | undefined;
}

const structs = new Map<string, GoField[]>();
/** client-node's prefix of the names that another package has had before: `DiscoveryV1EndpointPort`. */
const prefixes: Readonly<Record<string, string>> = { [join(api, "discovery/v1")]: "DiscoveryV1" };
/** `type PodPhase string`: named scalars, slices and maps. */
const named = new Map<string, string>();

for (const dir of packages) {
  const source = readFileSync(join(dir, "types.go"), "utf8");
  for (const [, name, body] of source.matchAll(/^type (\w+) struct \{\n([\s\S]*?)^\}/gm)) {
    const own = structs.has(name!) ? (prefixes[dir] ?? "") + name! : name!;
    if (!structs.has(own)) structs.set(own, [...fieldsOf(body!)]);
  }
  for (const [, name, type] of source.matchAll(/^type (\w+) ((?:\[\]|map\[\w+\])?[\w.*]+)$/gm)) named.set(name!, type!);
}

function* fieldsOf(body: string): Generator<GoField> {
  let comment = "";
  for (const line of body.split("\n")) {
    const text = line.trim();
    if (text.startsWith("//")) {
      comment += `${text}\n`;
      continue;
    }
    const [, name, type, tags] = /^(\w+ +)?([\w.*[\]]+)\s+`(.*?)`/.exec(text) ?? [];
    const field = tags === undefined ? undefined : fieldOf(name, type!, tags, comment);
    if (field !== undefined) yield field;
    comment = "";
  }
}

/** @param name absent for an embedded struct. @param comment what stands above it */
function fieldOf(name: string | undefined, type: string, tags: string, comment: string): GoField | undefined {
  const tag = (pattern: RegExp): string | undefined => pattern.exec(tags)?.[1];
  const [json, ...options] = (tag(/json:"([^"]*)"/) ?? "-").split(",");
  if (json === "-" && options.length === 0) return undefined;
  const number = tag(/protobuf:"[^,]*,(\d+)/);
  const isMerged = tag(/patchStrategy:"([^"]*)"/)?.includes("merge") === true;
  const listType = /\+listType=(\w+)/.exec(comment)?.[1];
  const keys = [...comment.matchAll(/\+listMapKey=(\w+)/g)].map((m) => m[1]!);
  return {
    json: json!,
    type,
    omitempty: options.includes("omitempty") || options.includes("omitzero"),
    number: number === undefined ? undefined : Number(number),
    inline: options.includes("inline") || (name === undefined && json === ""),
    mergeKey: isMerged ? (tag(/patchMergeKey:"([^"]*)"/) ?? "") : undefined,
    applyKey: listType === "map" && keys.length === 1 ? keys[0] : listType === "set" ? "" : undefined,
  };
}

/** What a Go type is once names are looked through: `string`, `[]T`, `map`, `*T`, or a struct's name. */
function resolve(type: string): string {
  const bare = type.replace(/^(v1|corev1|metav1|resource|intstr|types|runtime|core)\./, "");
  if (bare === "UID" || bare === "NodeName") return "string";
  return named.has(bare) ? resolve(named.get(bare)!) : bare;
}

const isScalar = (type: string) => /^(string|bool|u?int\d*|float\d+|byte)$/.test(type);

/** `number` + flags: o = left out when zero, z = written even when absent, e = written even when empty, q = a quantity. */
function describe(name: string, prefix: string): string[] {
  return (structs.get(name) ?? []).flatMap((field) => {
    const path = field.number === undefined ? "" : `${prefix}${field.number}`;
    if (field.inline)
      return field.number === undefined && field.type.endsWith("TypeMeta")
        ? []
        : describe(resolve(field.type), `${path}.`);
    const type = resolve(field.type);
    let flags = "";
    if (type.startsWith("[]") || type.startsWith("map[")) {
      if (!field.omitempty) flags += "e";
    } else if (!type.startsWith("*") && type !== "IntOrString") {
      if (isScalar(type)) flags += field.omitempty ? "o" : "z";
      else flags += "z";
    }
    if (/Quantity/.test(type) || /map\[\w+\](resource\.)?Quantity/.test(type)) flags += "q";
    const keys = [
      field.mergeKey === undefined ? "" : `k:${field.mergeKey}`,
      field.applyKey === undefined ? "" : `l:${field.applyKey}`,
    ].filter(Boolean);
    return [`${field.json}=${[path + flags, ...keys].join(",")}`];
  });
}

const classes = models as unknown as Record<string, { getAttributeTypeMap?: () => { type: string }[] } | undefined>;
const goName = (model: string) => model.replace(/^(CoreV1|AuthenticationV1|StorageV1|V[12])/, "");

const roots =
  "V1Pod V1Node V1Namespace V1ConfigMap V1Secret V1Service V1Endpoints V1ServiceAccount CoreV1Event V1PersistentVolumeClaim V1PersistentVolume V1Lease V1CSINode V1StorageClass V1VolumeAttachment V1CSIDriver " +
  "V1RuntimeClass V1PriorityClass V1CertificateSigningRequest V1TokenReview AuthenticationV1TokenRequest V1SelfSubjectReview V1SubjectAccessReview " +
  "V1SelfSubjectAccessReview V1LocalSubjectAccessReview V1SelfSubjectRulesReview V1Eviction V1Binding V1DeleteOptions " +
  "V1Deployment V1ReplicaSet V1StatefulSet V1DaemonSet V1ControllerRevision V1Job V1CronJob V2HorizontalPodAutoscaler V1Scale V1EndpointSlice " +
  "V1PodDisruptionBudget";
const reachable = new Set(roots.split(" "));
const lines: string[] = [];
for (const model of reachable) {
  const attributes = classes[model]?.getAttributeTypeMap?.() ?? [];
  for (const { type } of attributes)
    for (const [used] of type.matchAll(/\b\w*V[12]\w+\b/g)) if (classes[used]) reachable.add(used);
  const described = describe(goName(model), "");
  // A MicroTime is a scalar on the wire; an empty struct has nothing to say.
  if (model === "V1MicroTime") continue;
  if (!structs.has(goName(model))) throw new Error(`no Go struct for ${model}`);
  lines.push(`  ${model}: ${JSON.stringify(described.join(" "))},`);
}

writeFileSync(
  join(import.meta.dirname, "../../../src/devcluster/objects/fields.gen.ts"),
  `/**
 * Generated by test/e2e/fidelity/generate-fields.ts from the Go types of Kubernetes; do not edit.
 *
 * Per model, \`field=NUMBER FLAGS,k:MERGEKEY,l:APPLYKEY\`. The number is the protobuf field, with dots into messages that JSON
 * inlines. Flags: o = left out when zero, z = written even when absent, e = written even when empty, q = a quantity.
 */
export const goFields: Readonly<Record<string, string>> = {
${lines.toSorted().join("\n")}
};
`,
);
