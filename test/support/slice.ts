const SLICES = Number(process.env["VMLET_TEST_SLICE"] ?? 1);

/**
 * With VMLET_TEST_SLICE=N only each N-th, the first of them chosen by `turn`: over N turns none is left out. At least one
 * is taken of those that there are. CI does so; by hand all are run.
 */
export function sliced<T>(all: readonly T[], turn = 0): T[] {
  const step = Math.min(SLICES, all.length);
  return all.filter((_, at) => (at + turn) % step === 0);
}
