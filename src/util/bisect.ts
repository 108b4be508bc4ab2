/**
 * The first of the indexes 0 to `length` - 1 for which `isBeyond` holds, or `length` when it holds for none. It must
 * hold for every index after one for which it holds.
 */
export function bisect(length: number, isBeyond: (index: number) => boolean): number {
  let low = 0;
  let high = length;
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (isBeyond(middle)) high = middle;
    else low = middle + 1;
  }
  return low;
}
