import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { neighbourLives, settleIn } from "./neighbour.ts";
import { networkCases } from "./network-cases.ts";
import { slowCases } from "./slow-cases.ts";
import { specificationCases } from "./specification-cases.ts";
import { stormCases } from "./storm-cases.ts";
import { streamCases } from "./stream-cases.ts";
import { Tenant } from "./tenant.ts";
import { MEMORY_LIMIT, startWorld, type World } from "./world.ts";

const cases = [...specificationCases, ...stormCases, ...streamCases, ...slowCases, ...networkCases];

describe("a neighbour's pods start, log, run commands and go, and the nodes live on, while a tenant", () => {
  let world: World;
  let serial = 0;
  beforeAll(async () => {
    world = await startWorld();
    await settleIn(world);
  });
  afterAll(() => world?.[Symbol.asyncDispose]());

  test.for(cases)("$name", async ({ namespace = "hostile", begin }) => {
    const tenant = new Tenant(world, `${namespace}-${serial++}`);
    await world.createNamespace(tenant.namespace);
    let after: (() => void) | undefined;
    try {
      const { deserved, end } = await begin(tenant);
      after = end;
      await Promise.all([neighbourLives(world), deserved?.()]);
      expect(world.pulse.takeFaults()).toEqual([]);
    } catch (thrown) {
      throw new Error(`${String(thrown)}\n${await world.agent.logTail(5)}`, { cause: thrown });
    } finally {
      after?.();
      world.proxy.relent();
      await tenant.leave();
    }
  });

  test("has done all that, and the agent never needed more memory than the chart gives it", async () => {
    expect(await world.agentPeakMemory()).toBeLessThan(MEMORY_LIMIT);
  });
});
