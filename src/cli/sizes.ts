/** Amounts as they stand in tables. */
const UNITS = [
  ["Gi", 2 ** 30],
  ["Mi", 2 ** 20],
  ["Ki", 2 ** 10],
] as const;

/** `250m` or `2`. */
export function formatCpu(millis: number): string {
  return millis % 1000 === 0 ? String(millis / 1000) : `${millis}m`;
}

/** In the largest unit of which it has at least one, with at most one decimal: `1.5Gi`. */
export function formatBytes(bytes: number): string {
  const [unit, size] = UNITS.find(([, each]) => bytes >= each) ?? ["", 1];
  return `${Math.round((bytes / size) * 10) / 10}${unit}`;
}

/** `2 cpu, 4Gi`; empty for a machine that asks for nothing. */
export function formatSize({ cpuMillis, memoryBytes }: { cpuMillis: number; memoryBytes: number }): string {
  return cpuMillis === 0 && memoryBytes === 0 ? "" : `${formatCpu(cpuMillis)} cpu, ${formatBytes(memoryBytes)}`;
}
