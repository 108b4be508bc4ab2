/** Which of a resource's devices a container gets: pure, as a kubelet's devicesToAllocate. */

interface Choice {
  name: string;
  count: number;
  /** Those that an init container of the machine has had; they come first. */
  again: ReadonlySet<string>;
  healthy: readonly string[];
  /** The healthy ones that no machine has. */
  free: readonly string[];
  /** Which ones the plugin would rather give. */
  preferred?: readonly string[] | undefined;
}

interface Chosen {
  ids: string[];
  /** There was no choice: no word of the plugin would change it. */
  isSettled: boolean;
  /** What the plugin may choose from, and what of it is chosen already. */
  available: string[];
  mustInclude: string[];
}

/** @throws Error when there are not enough of them */
export function choose({ name, count, again, healthy, free, preferred = [] }: Choice): Chosen {
  if (healthy.length === 0) throw new Error(`no healthy devices present; cannot allocate unhealthy devices ${name}`);
  const mustInclude = healthy.filter((id) => again.has(id)).slice(0, count);
  const needed = count - mustInclude.length;
  if (free.length < needed)
    throw new Error(
      `requested number of devices unavailable for ${name}. Requested: ${needed}, Available: ${free.length}`,
    );
  const rather = [...new Set(preferred)].filter((id) => free.includes(id));
  const others = free.filter((id) => !rather.includes(id));
  return {
    ids: [...mustInclude, ...[...rather, ...others].slice(0, needed)],
    isSettled: needed === 0 || free.length === needed,
    available: [...mustInclude, ...free],
    mustInclude,
  };
}
