import { expect, test } from "vitest";
import { MemoryProvider, randomCrashes } from "../../../providers/memory/index.ts";
import { machineSpec, script } from "../../support/builders.ts";
import { VirtualClock } from "../../support/virtual-clock.ts";

const { signal } = new AbortController();
const WITHIN_MS = 60_000;

/** A machine that runs for ever, in a provider with so many crashes. */
async function machineWith(probability: number) {
  const clock = new VirtualClock();
  // The middle of what is drawn: between none and all.
  const behaviour = randomCrashes({ random: () => 0.5, probability, withinMs: WITHIN_MS });
  const provider = new MemoryProvider({ clock, behaviour });
  await provider.createPod("m", machineSpec({ containers: [script("sleep 3600")], restart_policy: "never" }), {
    signal,
  });
  return { clock, provider, state: async () => (await provider.getPod("m", { signal })).containers[0] };
}

test("a run ends with 1 at its time, and its log says that it was simulated", async () => {
  const { clock, provider, state } = await machineWith(1);
  expect(await state()).toMatchObject({ state: "running" });
  await clock.advance(WITHIN_MS / 2);
  expect(await state()).toMatchObject({ state: "terminated", terminated: { exit_code: 1 } });
  const lines = await Array.fromAsync(provider.getLogs("m", (await state())!.name, { signal }));
  expect(lines.map(({ content }) => content.toString())).toEqual(["simulated crash"]);
  await provider.close();
});

test("a run that is stopped before ends as one that heeds its signal", async () => {
  const { clock, provider, state } = await machineWith(1);
  await provider.stopPod("m", { graceSeconds: 30, signal });
  await clock.advance(1);
  expect(await state()).toMatchObject({ state: "terminated", terminated: { exit_code: 143 } });
  await provider.close();
});

test("runs that are not drawn do what their command says", async () => {
  const { clock, provider, state } = await machineWith(0.5);
  await clock.advance(WITHIN_MS);
  expect(await state()).toMatchObject({ state: "running" });
  await provider.close();
});
