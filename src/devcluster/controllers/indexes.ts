/** Completion indexes of a Job, written as `0-3,5,7,8`. */
export function parseIndexes(text: string | undefined, completions: number): Set<number> {
  const indexes = new Set<number>();
  for (const interval of (text ?? "").split(",")) {
    const match = /^(\d+)(?:-(\d+))?$/.exec(interval);
    if (!match) continue;
    const last = Math.min(Number(match[2] ?? match[1]), completions - 1);
    for (let index = Number(match[1]); index <= last; index++) indexes.add(index);
  }
  return indexes;
}

/** Intervals of three and more with a hyphen, pairs with a comma. */
export function formatIndexes(indexes: ReadonlySet<number>): string {
  const intervals: [number, number][] = [];
  for (const index of [...indexes].toSorted((a, b) => a - b)) {
    const last = intervals.at(-1);
    if (last?.[1] === index - 1) last[1] = index;
    else intervals.push([index, index]);
  }
  return intervals
    .map(([first, last]) => (first === last ? `${first}` : `${first}${last === first + 1 ? "," : "-"}${last}`))
    .join(",");
}
