/**
 * Where in a pod's specification something is, as people are told it. Every pod passes dozens of such searches, and
 * hardly one finds anything: those that do not leave no garbage.
 */
import type { Container, Pod } from "../../kube/wire.ts";

export function paths<T>(
  items: readonly T[] | undefined,
  base: string,
  isUsed: (item: T) => boolean,
  suffix = "",
): string[] {
  const found: string[] = [];
  if (items === undefined) return found;
  for (let index = 0; index < items.length; index++)
    if (isUsed(items[index]!)) found.push(`${base}[${index}]${suffix}`);
  return found;
}

/** Calls `find` for every init and main container and completes the paths that it returns. */
export function containerPaths(pod: Pod, find: (container: Container) => string[]): string[] {
  const found: string[] = [];
  const add = (base: string, containers: readonly Container[] | undefined) => {
    if (containers === undefined) return;
    for (let index = 0; index < containers.length; index++)
      for (const path of find(containers[index]!)) found.push(`${base}[${index}]${path}`);
  };
  add("spec.initContainers", pod.spec?.initContainers);
  add("spec.containers", pod.spec?.containers);
  return found;
}

export function containerFields(pod: Pod, fields: readonly (keyof Container)[]): string[] {
  return containerPaths(pod, (container) =>
    fields.filter((field) => isSet(container[field])).map((field) => `.${field}`),
  );
}

export function isSet(value: unknown): boolean {
  return value !== undefined && value !== null && !(Array.isArray(value) && value.length === 0);
}
