import { expect, test } from "vitest";
import { MemoryProvider } from "../../../providers/memory/index.ts";
import { closingLines } from "../../../src/cli/conformance.ts";
import { ALL_CAPABILITIES, type Capability } from "../../../src/provider/capabilities.ts";
import { CHECKS, runConformance, UNCHECKED } from "../../../src/provider/kit/conformance.ts";
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

test("every capability has a check, or is on the list of those that have none", () => {
  const checked = new Set(CHECKS.flatMap(({ needs = [] }) => needs));
  const unchecked = new Set<Capability>(UNCHECKED);
  expect(ALL_CAPABILITIES.filter((capability) => !checked.has(capability) && !unchecked.has(capability))).toEqual([]);
  expect(UNCHECKED.filter((capability) => checked.has(capability))).toEqual([]);
});

test("a run names the capabilities that are declared and not checked, and those that nobody knows", async () => {
  const provider = new MemoryProvider({ clock: systemClock, capabilities: ["hosts", "events"] });
  const getInfo = provider.getInfo.bind(provider);
  provider.getInfo = async (options) => ({ ...(await getInfo(options)), unknownCapabilities: ["evnts"] });
  const report = await runConformance(provider, { only: ["info/"] });
  expect(closingLines(report)).toEqual([
    "declared, but no capability of that name is known: evnts; did you mean events?",
    "declared, not checked: hosts",
    "memory 1: 1 passed, 0 failed, 0 skipped",
  ]);
  await provider.close();
});
