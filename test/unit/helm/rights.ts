/** What the chart's roles allow, right by right. */
import type { Json } from "../../e2e/harness/client.ts";
import { named } from "./render.ts";

/** One verb on one kind of object, as one rule grants it to one account. */
export interface Right {
  verb: string;
  group: string;
  /** With its subresource, as `pods/status`. */
  resource: string;
  /** Absent: any object. */
  name?: string;
  /** Absent: everywhere. */
  namespace?: string;
  /** What takes it from the account: the role with this right left out, or nothing where the whole binding has to go. */
  binding: Json;
  role?: Json;
}

/** Kubernetes' own role, which the chart only binds to. */
const CLIENT_CA_READER = "extension-apiserver-authentication-reader";

/** @throws Error when a binding names a role that there is not */
export function rightsOf(objects: readonly Json[], account: string): Right[] {
  const bindings = objects.filter(
    (object) =>
      object.kind.endsWith("RoleBinding") &&
      object.subjects.some(
        (subject: Json) =>
          subject.name === account || subject.name === `system:serviceaccount:${subject.namespace}:${account}`,
      ),
  );
  return bindings.flatMap((binding): Right[] => {
    const { namespace } = binding.metadata;
    const scope = namespace === undefined ? {} : { namespace };
    if (binding.roleRef.name === CLIENT_CA_READER) {
      const name = "extension-apiserver-authentication";
      return [{ verb: "get", group: "", resource: "configmaps", name, ...scope, binding }];
    }
    const role = objects.find(
      (object) =>
        object.kind === binding.roleRef.kind &&
        object.metadata.name === binding.roleRef.name &&
        object.metadata.namespace === namespace,
    );
    if (!role) throw new Error(`${named(binding)} names ${binding.roleRef.name}, which the chart does not render`);
    return single(role.rules).map((rule) => ({
      verb: rule.verbs[0],
      group: rule.apiGroups[0],
      resource: rule.resources[0],
      ...(rule.resourceNames && { name: rule.resourceNames[0] }),
      ...scope,
      binding,
      role,
    }));
  });
}

/** `get /configmaps extension-apiserver-authentication`; a right to all objects has the name `*`. */
export function keyOf({
  verb,
  group,
  resource,
  name = "*",
}: Pick<Right, "verb" | "group" | "resource"> & { name?: string | undefined }): string {
  return `${verb} ${group}/${resource} ${name}`;
}

/** The role of a right, with everything else that it grants. */
export function roleWithout(right: Right & { role: Json }): Json {
  const rules = single(right.role.rules).filter(
    (rule) =>
      keyOf({
        verb: rule.verbs[0],
        group: rule.apiGroups[0],
        resource: rule.resources[0],
        name: rule.resourceNames?.[0],
      }) !== keyOf(right),
  );
  return { ...right.role, rules };
}

/** The same rules, each with one verb, one resource and at most one name. */
function single(rules: readonly Json[]): Json[] {
  return rules.flatMap((rule) =>
    rule.apiGroups.flatMap((group: string) =>
      rule.resources.flatMap((resource: string) =>
        rule.verbs.flatMap((verb: string) =>
          (rule.resourceNames ?? [undefined]).map((name: string | undefined) => ({
            apiGroups: [group],
            resources: [resource],
            verbs: [verb],
            ...(name !== undefined && { resourceNames: [name] }),
          })),
        ),
      ),
    ),
  );
}
