/** The roles that a configuration needs, as YAML for `kubectl apply`: for those who install without the chart. */
import { stringify } from "yaml";
import { configuredPermissions, describePermission, type Permission } from "../agent/permissions.ts";
import type { AgentConfig } from "../config/schema.ts";

/** Who the agent is to the API server. */
type Subject =
  | { kind: "ServiceAccount"; namespace: string; name: string }
  | { kind: "User"; apiGroup: "rbac.authorization.k8s.io"; name: string };

interface Rule {
  apiGroups: string[];
  resources: string[];
  verbs: string[];
  resourceNames?: string[];
}

const RBAC = "rbac.authorization.k8s.io";
/** Where pods of the node are, until somebody says where. */
const WORKLOADS = "default";

/** @param account `NAMESPACE/NAME` of a ServiceAccount, a user's name, or true for `vmlet/vmlet` */
export function subjectOf(account: string | true): Subject {
  const [, namespace, name] = /^([a-z0-9-]+)\/([a-z0-9.-]+)$/.exec(account === true ? "vmlet/vmlet" : account) ?? [];
  if (namespace !== undefined && name !== undefined) return { kind: "ServiceAccount", name, namespace };
  return { kind: "User", apiGroup: RBAC, name: String(account) };
}

/** Roles and bindings as YAML documents, with what has to be decided beside them as comments. */
export function rbacYaml(config: AgentConfig, subject: Subject): string {
  const permissions = config.nodes.flatMap((node) => configuredPermissions(config, node)).filter(isOfProcess(config));
  const comments = ["What the agent needs of the API server by this configuration."];
  if (permissions.some(({ exampleOf }) => exampleOf === "workloads"))
    comments.push(
      `The Role and RoleBinding of the namespace ${WORKLOADS}: one of each for every namespace whose pods may run on the nodes.`,
      "RBAC cannot narrow rights to the pods of a node; identity.mode `impersonate` does, or the chart's ValidatingAdmissionPolicy.",
    );
  for (const permission of permissions.filter(({ danger }) => danger !== undefined))
    comments.push(
      `Left out: ${describePermission(permission)} (${permission.danger}); without it ${permission.purpose}.`,
    );
  const head = [...new Set(comments)].map((line) => `# ${line}\n`).join("");
  return (
    head +
    rbacObjects(permissions, subject)
      .map((object) => stringify(object, { lineWidth: 0 }))
      .join("---\n")
  );
}

/** Who acts as a node is granted the node's rights by the Node authorizer. */
function isOfProcess({ identity }: AgentConfig) {
  return ({ asProcess = false }: Permission) => asProcess || identity.mode === "direct";
}

function rbacObjects(permissions: readonly Permission[], subject: Subject): object[] {
  const account = subject.kind === "User" ? subject.name : `${subject.namespace}:${subject.name}`;
  const name = `vmlet:${account.replaceAll(/[/%]/g, "-")}`;
  const granted = permissions.filter(({ danger }) => danger === undefined);
  return [...Map.groupBy(granted, scopeOf)].flatMap(([namespace, ofScope]) => {
    const kind = namespace === undefined ? "ClusterRole" : "Role";
    const metadata = { name, ...(namespace !== undefined && { namespace }) };
    const apiVersion = `${RBAC}/v1`;
    return [
      { apiVersion, kind, metadata, rules: rulesOf(ofScope) },
      { apiVersion, kind: `${kind}Binding`, metadata, roleRef: { apiGroup: RBAC, kind, name }, subjects: [subject] },
    ];
  });
}

/** The namespace that a permission is needed in; undefined for all, and for what has none. */
function scopeOf({ attributes, exampleOf }: Permission): string | undefined {
  if (exampleOf === "workloads") return WORKLOADS;
  return exampleOf === "namespaces" ? undefined : attributes.namespace;
}

/** One rule for what differs in verbs or names alone. */
function rulesOf(permissions: readonly Permission[]): Rule[] {
  const single = permissions.map(({ attributes: { verb, group = "", resource, subresource, name }, exampleOf }) => ({
    verb,
    group,
    resource: subresource === undefined ? resource : `${resource}/${subresource}`,
    name: exampleOf === undefined ? name : undefined,
  }));
  const byObject = Map.groupBy(single, ({ group, resource, name }) => JSON.stringify([group, resource, name]));
  const verbsOf = [...byObject.values()].map((alike) => ({
    ...alike[0]!,
    verbs: [...new Set(alike.map(({ verb }) => verb))],
  }));
  const byVerbs = Map.groupBy(verbsOf, ({ group, resource, name, verbs }) =>
    JSON.stringify([group, resource, name === undefined, verbs]),
  );
  return [...byVerbs.values()].map((alike): Rule => {
    const { group, resource, verbs } = alike[0]!;
    const names = alike.flatMap(({ name }) => (name === undefined ? [] : [name]));
    return { apiGroups: [group], resources: [resource], verbs, ...(names.length > 0 && { resourceNames: names }) };
  });
}
