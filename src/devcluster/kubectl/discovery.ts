/** What this server says about itself: groups, resources, version and OpenAPI documents. */
import { apiVersionOf, type Kind } from "../kinds/kind.ts";
import { kinds } from "../kinds/kinds.ts";
import type { Json } from "../objects/object.ts";
import { reviewKinds } from "../auth/reviews.ts";
import { fieldsOf, type FieldType } from "../objects/schema.ts";
import { USAGE_GROUP, USAGE_VERSION, usageKinds } from "./usage.ts";
import { descriptionsOf } from "./descriptions.ts";

/** The release whose behaviour and models this server follows. */
export const KUBERNETES_VERSION = { major: "1", minor: "37", gitVersion: "v1.37.0-devcluster" };

export const versionInfo = {
  ...KUBERNETES_VERSION,
  emulationMajor: "1",
  emulationMinor: KUBERNETES_VERSION.minor,
  minCompatibilityMajor: "1",
  minCompatibilityMinor: "36",
  gitCommit: "",
  gitTreeState: "clean",
  buildDate: "1970-01-01T00:00:00Z",
  goVersion: "",
  compiler: "",
  platform: `${process.platform}/${process.arch}`,
};

interface ApiResource {
  name: string;
  singularName: string;
  namespaced: boolean;
  group?: string;
  version?: string;
  kind: string;
  verbs: string[];
  shortNames?: string[];
  categories?: string[];
}

const proxyVerbs = ["create", "delete", "get", "patch", "update"];

/** Subresources that are not written through `Kind.subresources`. */
const actions: Record<string, Omit<ApiResource, "singularName" | "namespaced">[]> = {
  "/pods": [
    { name: "attach", kind: "PodAttachOptions", verbs: ["create", "get"] },
    { name: "binding", kind: "Binding", verbs: ["create"] },
    { name: "eviction", group: "policy", version: "v1", kind: "Eviction", verbs: ["create"] },
    { name: "exec", kind: "PodExecOptions", verbs: ["create", "get"] },
    { name: "log", kind: "Pod", verbs: ["get"] },
    { name: "portforward", kind: "PodPortForwardOptions", verbs: ["create", "get"] },
  ],
  "/nodes": [{ name: "proxy", kind: "NodeProxyOptions", verbs: proxyVerbs }],
  "/serviceaccounts": [
    { name: "token", group: "authentication.k8s.io", version: "v1", kind: "TokenRequest", verbs: ["create"] },
  ],
};

function resourcesOf(kind: Kind): ApiResource[] {
  const own: ApiResource = {
    name: kind.resource,
    singularName: kind.singular,
    namespaced: kind.namespaced,
    kind: kind.kind,
    verbs: [...kind.verbs],
    ...(kind.shortNames.length > 0 && { shortNames: [...kind.shortNames] }),
    ...(kind.categories.length > 0 && { categories: [...kind.categories] }),
  };
  const sub = [
    ...Object.keys(kind.subresources).map((name) => ({
      name,
      kind: kind.kind,
      verbs: name === "finalize" ? ["update"] : ["get", "patch", "update"],
    })),
    ...(kind.scale
      ? [{ name: "scale", group: "autoscaling", version: "v1", kind: "Scale", verbs: ["get", "patch", "update"] }]
      : []),
    ...(actions[`${kind.group}/${kind.resource}`] ?? []),
  ].map((s): ApiResource => ({
    ...s,
    name: `${kind.resource}/${s.name}`,
    singularName: "",
    namespaced: kind.namespaced,
  }));
  return [own, ...sub.sort((a, b) => (a.name < b.name ? -1 : 1))];
}

/** `group/version` -> its resources; the core group is `v1`. */
const groupVersions: ReadonlyMap<string, ApiResource[]> = (() => {
  const map = new Map<string, ApiResource[]>();
  const add = (groupVersion: string, resources: ApiResource[]) =>
    map.set(groupVersion, [...(map.get(groupVersion) ?? []), ...resources]);
  add("v1", [{ name: "bindings", singularName: "binding", namespaced: true, kind: "Binding", verbs: ["create"] }]);
  for (const kind of kinds) add(apiVersionOf(kind), resourcesOf(kind));
  for (const review of reviewKinds) {
    add(`${review.group}/${review.version}`, [
      {
        name: review.resource,
        singularName: review.kind.toLowerCase(),
        namespaced: review.namespaced,
        kind: review.kind,
        verbs: ["create"],
      },
    ]);
  }
  for (const { resource, kind, namespaced } of usageKinds) {
    add(`${USAGE_GROUP}/${USAGE_VERSION}`, [
      { name: resource, singularName: "", namespaced, kind, verbs: ["get", "list"] },
    ]);
  }
  return map;
})();

const groups = [...groupVersions.keys()]
  .filter((groupVersion) => groupVersion.includes("/"))
  .map((groupVersion) => ({ group: groupVersion.split("/")[0]!, version: groupVersion.split("/")[1]!, groupVersion }));

const groupDocument = (g: (typeof groups)[number]) => ({
  name: g.group,
  versions: [{ groupVersion: g.groupVersion, version: g.version }],
  preferredVersion: { groupVersion: g.groupVersion, version: g.version },
});

/** The discovery document at `path`, or undefined. `aggregated` asks for everything of `/api` or `/apis` in one. */
export function discoveryDocument(path: string, aggregated: boolean): object | undefined {
  if (path === "/api") {
    if (aggregated) return aggregate([{ group: "", version: "v1", groupVersion: "v1" }]);
    return { kind: "APIVersions", versions: ["v1"], serverAddressByClientCIDRs: [] };
  }
  if (path === "/apis") {
    if (aggregated) return aggregate(groups);
    return { kind: "APIGroupList", apiVersion: "v1", groups: groups.map(groupDocument) };
  }
  const group = groups.find((g) => path === `/apis/${g.group}`);
  if (group) return { kind: "APIGroup", apiVersion: "v1", ...groupDocument(group) };
  const match = /^\/(?:api|apis)\/(.+)$/.exec(path);
  const resources =
    match && path.startsWith("/api/") === (match[1] === "v1") ? groupVersions.get(match[1]!) : undefined;
  return (
    resources && {
      kind: "APIResourceList",
      ...(match![1] !== "v1" && { apiVersion: "v1" }),
      groupVersion: match![1],
      resources,
    }
  );
}

function aggregate(list: readonly { group: string; version: string; groupVersion: string }[]): Json {
  return {
    kind: "APIGroupDiscoveryList",
    apiVersion: "apidiscovery.k8s.io/v2",
    metadata: {},
    items: list.map((g) => ({
      metadata: g.group === "" ? {} : { name: g.group },
      versions: [
        {
          version: g.version,
          resources: aggregatedResources(groupVersions.get(g.groupVersion)!),
          freshness: "Current",
        },
      ],
    })),
  };
}

function aggregatedResources(resources: readonly ApiResource[]): Json[] {
  const kindOf = (r: ApiResource) => ({ group: r.group ?? "", version: r.version ?? "", kind: r.kind });
  return resources
    .filter((r) => !r.name.includes("/"))
    .map((r) => {
      const sub = resources.filter((s) => s.name.startsWith(`${r.name}/`));
      return {
        resource: r.name,
        responseKind: kindOf(r),
        scope: r.namespaced ? "Namespaced" : "Cluster",
        singularResource: r.singularName,
        verbs: r.verbs,
        ...(r.shortNames && { shortNames: r.shortNames }),
        ...(r.categories && { categories: r.categories }),
        ...(sub.length > 0 && {
          subresources: sub.map((s) => ({
            subresource: s.name.slice(r.name.length + 1),
            responseKind: kindOf(s),
            verbs: s.verbs,
          })),
        }),
      };
    });
}

/** `V1PodSpec` is client-node's; kubectl shows what is behind the last dot. */
const schemaName = (model: string): string =>
  `io.k8s.${model.replace(/^([A-Z][a-z]+)?(V\d+(?:(?:alpha|beta)\d+)?)([A-Z])/, (_, group: string | undefined, version: string, first: string) => `${group === undefined ? "" : `${group.toLowerCase()}.`}${version.toLowerCase()}.${first}`)}`;
const patchTypes = [
  "application/apply-patch+yaml",
  "application/json-patch+json",
  "application/merge-patch+json",
  "application/strategic-merge-patch+json",
];

function schemaOfType(type: FieldType, refBase: string, seen: Set<string>): Json {
  switch (type.is) {
    case "object":
      seen.add(type.model);
      return { $ref: refBase + schemaName(type.model) };
    case "array":
      return { type: "array", items: schemaOfType(type.of, refBase, seen) };
    case "map":
      return { type: "object", additionalProperties: schemaOfType(type.of, refBase, seen) };
    case "int":
      return { type: "integer", format: "int64" };
    case "double":
      return { type: "number", format: "double" };
    case "boolean":
      return { type: "boolean" };
    case "bytes":
      return { type: "string", format: "byte" };
    case "time":
    case "microTime":
      return { type: "string", format: "date-time" };
    case "intOrString":
      return { type: "string", format: "int-or-string" };
    case "any":
      return { type: "object" };
    case "string":
      return { type: "string" };
  }
}

/**
 * The schemas of some kinds and of all that they refer to, with the patch strategies that `kubectl apply` reads and the
 * descriptions that `kubectl explain` shows.
 */
function schemas(ofKinds: readonly Kind[], refBase: string): Json {
  const out: Record<string, Json> = {};
  const queue = new Set(ofKinds.map((kind) => kind.model));
  for (const model of queue) {
    const properties: Record<string, Json> = {};
    const described = descriptionsOf(model);
    for (const [field, { type, mergeKey }] of fieldsOf(model)) {
      // Of a field that is an object the models have no words of its own.
      const ofType = type.is === "object" ? descriptionsOf(type.model).kind : undefined;
      const description = described.fields.get(field) ?? ofType;
      properties[field] = {
        ...(description !== undefined && { description }),
        ...schemaOfType(type, refBase, queue),
        ...(mergeKey !== undefined && { "x-kubernetes-patch-strategy": "merge" }),
        ...(mergeKey && { "x-kubernetes-patch-merge-key": mergeKey }),
      };
    }
    const kind = ofKinds.find((k) => k.model === model);
    out[schemaName(model)] = {
      ...(described.kind !== undefined && { description: described.kind }),
      type: "object",
      properties,
      ...(kind && {
        "x-kubernetes-group-version-kind": [{ group: kind.group, version: kind.version, kind: kind.kind }],
      }),
    };
  }
  return out;
}

const collectionPath = (kind: Kind): string =>
  `${kind.group === "" ? "/api" : "/apis"}/${apiVersionOf(kind)}${kind.namespaced ? "/namespaces/{namespace}" : ""}/${kind.resource}`;

/** Paths carry only what clients look for: the kind, the patch types, and that fields are validated here. */
function paths(ofKinds: readonly Kind[], v3: boolean): Json {
  const out: Record<string, Json> = {};
  for (const kind of ofKinds) {
    const gvk = { group: kind.group, version: kind.version, kind: kind.kind };
    const param = (name: string) =>
      v3
        ? { name, in: "query", schema: { type: "string", uniqueItems: true } }
        : { name, in: "query", type: "string", uniqueItems: true };
    const operation = (action: string): Json => ({
      operationId: `${action}${kind.kind}`,
      "x-kubernetes-action": action,
      "x-kubernetes-group-version-kind": gvk,
      parameters: action === "get" || action === "list" ? [] : ["dryRun", "fieldManager", "fieldValidation"].map(param),
      responses: { "200": { description: "OK" } },
    });
    const patch: Json = {
      ...operation("patch"),
      ...(v3
        ? { requestBody: { content: Object.fromEntries(patchTypes.map((type) => [type, {}])) } }
        : { consumes: patchTypes }),
    };
    out[collectionPath(kind)] = { get: operation("list"), post: operation("post") };
    out[`${collectionPath(kind)}/{name}`] = { get: operation("get"), put: operation("put"), patch };
  }
  return out;
}

/** `/openapi/v3` and the documents below it, or undefined. */
export function openApiV3(path: string): object | undefined {
  const names = [...groupVersions.keys()].map((groupVersion) =>
    groupVersion === "v1" ? "api/v1" : `apis/${groupVersion}`,
  );
  if (path === "/openapi/v3") {
    return {
      paths: Object.fromEntries(
        names.map((name) => [name, { serverRelativeURL: `/openapi/v3/${name}?hash=${KUBERNETES_VERSION.gitVersion}` }]),
      ),
    };
  }
  const name = path.slice("/openapi/v3/".length);
  if (!names.includes(name)) return undefined;
  const ofGroup = kinds.filter((kind) => `${kind.group === "" ? "api" : "apis"}/${apiVersionOf(kind)}` === name);
  return {
    openapi: "3.0.0",
    info: { title: "Kubernetes", version: KUBERNETES_VERSION.gitVersion },
    paths: paths(ofGroup, true),
    components: { schemas: schemas(ofGroup, "#/components/schemas/") },
  };
}

export const openApiV2 = (): Json => ({
  swagger: "2.0",
  info: { title: "Kubernetes", version: KUBERNETES_VERSION.gitVersion },
  paths: paths(kinds, false),
  definitions: schemas(kinds, "#/definitions/"),
});
