import { expect, test } from "vitest";
import { MemoryProvider } from "../../../providers/memory/index.ts";
import { runConformance } from "../../../src/provider/kit/conformance.ts";
import { systemClock } from "../../../src/util/clock.ts";

test("a conformance run that is stopped leaves no machine behind, and says that it was stopped", async () => {
  const provider = new MemoryProvider({ clock: systemClock });
  const stop = new AbortController();
  const create = provider.createPod.bind(provider);
  let created = 0;
  provider.createPod = async (...args) => {
    const machine = await create(...args);
    created++;
    stop.abort(new Error("stopped by SIGINT"));
    return machine;
  };
  const told: string[] = [];
  const run = runConformance(provider, { signal: stop.signal, onResult: ({ outcome }) => told.push(outcome) });
  await expect(run).rejects.toThrow("stopped by SIGINT");
  expect(created).toBeGreaterThan(0);
  expect(provider.machines.filter(({ state }) => state !== "deleted")).toEqual([]);
  expect(told).not.toContain("failed");
  await provider.close();
});
