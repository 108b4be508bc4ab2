/** Paths of the resources that the agent touches. Every segment is percent-encoded, so a name can never escape its place. */
const enc = encodeURIComponent;

/** `/api/v1` for the core group "", else `/apis/GROUP/VERSION`. */
export function groupPath(group: string, version: string): string {
  return group === "" ? `/api/${version}` : `/apis/${group}/${version}`;
}

/** Path of a resource, or of its collection when `name` is absent. */
export function resourcePath(r: {
  group?: string;
  version?: string;
  resource: string;
  namespace?: string;
  name?: string;
  subresource?: string;
}): string {
  let path = groupPath(r.group ?? "", r.version ?? "v1");
  if (r.namespace !== undefined) path += `/namespaces/${enc(r.namespace)}`;
  path += `/${r.resource}`;
  if (r.name !== undefined) path += `/${enc(r.name)}`;
  if (r.subresource !== undefined) path += `/${r.subresource}`;
  return path;
}

export const podsPath = () => resourcePath({ resource: "pods" });
export const podPath = (namespace: string, name: string, subresource?: "status" | "binding") =>
  resourcePath({ resource: "pods", namespace, name, ...(subresource && { subresource }) });
export const nodesPath = () => resourcePath({ resource: "nodes" });
export const nodePath = (name: string, subresource?: "status") =>
  resourcePath({ resource: "nodes", name, ...(subresource && { subresource }) });
export const leasesPath = (namespace: string) =>
  resourcePath({ group: "coordination.k8s.io", resource: "leases", namespace });
export const leasePath = (namespace: string, name: string) =>
  resourcePath({ group: "coordination.k8s.io", resource: "leases", namespace, name });
export const eventsPath = (namespace: string) => resourcePath({ resource: "events", namespace });
