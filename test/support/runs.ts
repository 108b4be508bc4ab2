/**
 * How often a property is tried: `usual` times with every `npm test`, and `VMLET_TEST_RUNS` times as often by hand, for
 * example 50 after a change of what the property is about.
 */
export function runs(usual: number): number {
  return Math.ceil(usual * Number(process.env["VMLET_TEST_RUNS"] ?? 1));
}
