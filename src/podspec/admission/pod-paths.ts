/** Where in a pod's specification something is, as people are told it. */
import type { Container, Pod } from "../../kube/wire.ts";

export function paths<T>(
  items: readonly T[] | undefined,
  base: string,
  isUsed: (item: T) => boolean,
  suffix = "",
): string[] {
  return (items ?? []).flatMap((item, index) => (isUsed(item) ? [`${base}[${index}]${suffix}`] : []));
}

/** Calls `find` for every init and main container and completes the paths that it returns. */
export function containerPaths(pod: Pod, find: (container: Container) => string[]): string[] {
  const groups = [
    { base: "spec.initContainers", containers: pod.spec?.initContainers ?? [] },
    { base: "spec.containers", containers: pod.spec?.containers ?? [] },
  ];
  return groups.flatMap(({ base, containers }) =>
    containers.flatMap((container, index) => find(container).map((path) => `${base}[${index}]${path}`)),
  );
}

export function containerFields(pod: Pod, fields: readonly (keyof Container)[]): string[] {
  return containerPaths(pod, (container) =>
    fields.filter((field) => isSet(container[field])).map((field) => `.${field}`),
  );
}

export function isSet(value: unknown): boolean {
  return value !== undefined && value !== null && !(Array.isArray(value) && value.length === 0);
}
