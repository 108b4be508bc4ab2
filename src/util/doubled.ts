/** `first` milliseconds, doubled for each of `failures` earlier failures, at most `max`: a delay without jitter. */
export function doubledMs({ first, max }: { first: number; max: number }, failures: number): number {
  // The exponent is capped because Infinity * 0 would be NaN.
  return Math.min(max, first * 2 ** Math.min(failures, 64));
}
