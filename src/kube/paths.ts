/**
 * Paths of the resources that the agent touches. Every name comes from outside: it is percent-encoded, and names that
 * URLs resolve even so (`.` and `..`) are refused, by client-go's rules.
 */
import { VmletError } from "../util/errors.ts";

/** A name that cannot be one segment of a path: no object can have this name. */
export class InvalidNameError extends VmletError {
  readonly code = "INVALID_NAME";
}

/** client-go: `IsValidPathSegmentName` (apimachinery, pkg/api/validate/content). @throws InvalidNameError */
function segment(what: string, name: string): string {
  const refuse = (why: string) => {
    // The length of a pull secret's name has not been checked by the API server.
    throw new InvalidNameError(`invalid ${what} ${JSON.stringify(name.slice(0, 253))}: [${why}]`);
  };
  if (name === "") refuse("may not be empty");
  if (name === "." || name === "..") refuse(`may not be '${name}'`);
  for (const character of ["/", "%"]) if (name.includes(character)) refuse(`may not contain '${character}'`);
  return encodeURIComponent(name);
}

/** `/api/v1` for the core group "", else `/apis/GROUP/VERSION`. */
function groupPath(group: string, version: string): string {
  return group === "" ? `/api/${version}` : `/apis/${group}/${version}`;
}

/** Path of a resource, or of its collection when `name` is absent. @throws InvalidNameError */
export function resourcePath(r: {
  group?: string;
  version?: string;
  resource: string;
  namespace?: string;
  name?: string | undefined;
  subresource?: string | undefined;
}): string {
  let path = groupPath(r.group ?? "", r.version ?? "v1");
  if (r.namespace !== undefined) path += `/namespaces/${segment("namespace", r.namespace)}`;
  path += `/${r.resource}`;
  if (r.name !== undefined) path += `/${segment("resource name", r.name)}`;
  if (r.subresource !== undefined) path += `/${r.subresource}`;
  return path;
}

export const podsPath = () => resourcePath({ resource: "pods" });
export const podPath = (namespace: string, name: string, subresource?: "status" | "binding" | "eviction") =>
  resourcePath({ resource: "pods", namespace, name, subresource });
export const nodesPath = () => resourcePath({ resource: "nodes" });
export const nodePath = (name: string, subresource?: "status") =>
  resourcePath({ resource: "nodes", name, subresource });
export const leasesPath = (namespace: string) =>
  resourcePath({ group: "coordination.k8s.io", resource: "leases", namespace });
export const leasePath = (namespace: string, name: string) =>
  resourcePath({ group: "coordination.k8s.io", resource: "leases", namespace, name });
export const eventsPath = (namespace: string) => resourcePath({ resource: "events", namespace });

/** The namespace of the objects that a path is about; undefined for objects of the cluster, a Namespace among them. */
export const namespaceOf = (path: string): string | undefined =>
  /^\/apis?(?:\/[^/]+){1,2}\/namespaces\/([^/]+)\//.exec(path)?.[1];
