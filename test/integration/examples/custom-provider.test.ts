import { join } from "node:path";
import { expect, test } from "vitest";
import { createProvider } from "../../../src/cli/providers.ts";
import { runConformance } from "../../../src/provider/kit/index.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { systemClock } from "../../../src/util/clock.ts";
import { systemRandom } from "../../../src/util/random.ts";

const module = join(import.meta.dirname, "../../../examples/custom-provider.ts");

test("the example of a provider keeps the contract", async () => {
  const provider = await createProvider(
    { type: "module", module, options: { shell: "/bin/sh" } },
    { clock: systemClock, random: systemRandom, logger: silentLogger },
  );
  try {
    const report = await runConformance(provider, { patienceMs: 30_000 });
    expect(report.results.filter((result) => result.outcome === "failed")).toEqual([]);
    expect(report.passed).toBeGreaterThan(10);
  } finally {
    await provider.close();
  }
}, 120_000);
