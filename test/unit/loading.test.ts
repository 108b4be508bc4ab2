/**
 * What the agent loads before it does anything: a package that is loaded whole costs each agent its memory for good.
 * Counted by the imports that Node follows at once, so neither types nor what `import()` brings where it is needed.
 */
import { readFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { describe, expect, test } from "vitest";

const root = join(import.meta.dirname, "../..");

/** The packages that a module and all that it imports need at once. */
function packagesOf(entry: string): string[] {
  const seen = new Set<string>();
  const packages = new Set<string>();
  const visit = (file: string): void => {
    if (seen.has(file)) return;
    seen.add(file);
    const source = readFileSync(file, "utf8");
    for (const [, clause = "", target = ""] of source.matchAll(
      /^(?:import|export)\s(type\s)?(?:[^;"']*?\sfrom\s)?"([^"]+)"/gm,
    )) {
      if (clause !== "" || target.startsWith("node:")) continue;
      if (!target.startsWith(".")) packages.add(target);
      else if (target.endsWith(".ts")) visit(join(dirname(file), target));
    }
  };
  visit(join(root, entry));
  return [...packages].sort();
}

describe("the agent's start", () => {
  test("loads these packages and no others, whatever its provider", () => {
    expect(packagesOf("src/cli/run.ts")).toEqual([
      "commander",
      "date-fns/constants",
      "date-fns/hoursToMilliseconds",
      "date-fns/minutesToMilliseconds",
      "date-fns/secondsToHours",
      "date-fns/secondsToMinutes",
      "p-queue",
      "pino",
      "prom-client/lib/counter.js",
      "prom-client/lib/gauge.js",
      "prom-client/lib/histogram.js",
      "prom-client/lib/metrics/gc.js",
      "prom-client/lib/metrics/heapSizeAndUsed.js",
      "prom-client/lib/metrics/heapSpacesSizeAndUsed.js",
      "prom-client/lib/metrics/osMemoryHeap.js",
      "prom-client/lib/metrics/processHandles.js",
      "prom-client/lib/metrics/processMaxFileDescriptors.js",
      "prom-client/lib/metrics/processOpenFileDescriptors.js",
      "prom-client/lib/metrics/processRequests.js",
      "prom-client/lib/metrics/processResources.js",
      "prom-client/lib/metrics/processStartTime.js",
      "prom-client/lib/metrics/version.js",
      "prom-client/lib/registry.js",
      "undici/lib/api/api-request.js",
      "undici/lib/dispatcher/agent.js",
      "undici/lib/dispatcher/proxy-agent.js",
      "ws",
      "yaml",
      "zod",
    ]);
  });
});
