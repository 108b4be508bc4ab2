/** What somebody may have meant who misspelt a name. */

/** No name that a person types is longer; the comparison takes the product of both lengths. */
const MAX_LENGTH = 64;

/**
 * The known name that is nearest to a misspelt one: at most a third of it, and no more than three letters, is wrong.
 * Case, hyphens and underscores count for nothing, so `node-name` finds `nodeName`.
 * @internal
 */
export function nearest(name: string, known: Iterable<string>): string | undefined {
  const plain = plainOf(name);
  if (plain.length === 0 || plain.length > MAX_LENGTH) return undefined;
  let best: { name: string; distance: number } | undefined;
  for (const candidate of known) {
    const other = plainOf(candidate);
    if (other.length > MAX_LENGTH) continue;
    const distance = distanceOf(plain, other);
    if (distance > Math.min(3, Math.max(plain.length, other.length) / 3)) continue;
    if (best === undefined || distance < best.distance) best = { name: candidate, distance };
  }
  return best?.name;
}

/** `; did you mean X?`, or nothing where no known name is near. */
export function didYouMean(name: string, known: Iterable<string>): string {
  const meant = nearest(name, known);
  return meant === undefined ? "" : `; did you mean ${meant}?`;
}

const plainOf = (name: string): string => name.toLowerCase().replaceAll(/[-_]/g, "");

/** Letters to add, drop or change, and neighbours to swap (optimal string alignment). */
function distanceOf(one: string, other: string): number {
  let before: number[] = [];
  let last = Array.from({ length: other.length + 1 }, (_, column) => column);
  for (let row = 1; row <= one.length; row++) {
    const current = [row];
    for (let column = 1; column <= other.length; column++) {
      const isSame = one[row - 1] === other[column - 1];
      let least = Math.min(last[column]! + 1, current[column - 1]! + 1, last[column - 1]! + (isSame ? 0 : 1));
      if (one[row - 1] === other[column - 2] && one[row - 2] === other[column - 1])
        least = Math.min(least, before[column - 2]! + 1);
      current.push(least);
    }
    before = last;
    last = current;
  }
  return last[other.length]!;
}
