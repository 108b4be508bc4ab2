/** Ends of an agent's process: killed again and again, stopped in the middle of its work, short of memory. */
import { once } from "node:events";
import { afterEach, beforeEach, expect, test } from "vitest";
import type { Json } from "../../e2e/harness/client.ts";
import { must, waitFor } from "../../e2e/harness/wait.ts";
import { openExec } from "../hostile/exec.ts";
import { startPlace, type Place } from "./place.ts";

/** Several starts of an agent, each of which takes seconds. */
const LONG_MS = 120_000;

let place: Place;
beforeEach(async () => {
  place = await startPlace();
});
afterEach(() => place?.[Symbol.asyncDispose]());

const times = (count: number) => Array.from({ length: count }, (_, i) => i);

/** One live machine for each pod, which has run since it was made. */
async function expectOneMachineEach(pods: readonly Json[]): Promise<void> {
  const live = (await place.machines()).filter(({ state }) => state === "running");
  const uidsOf = (all: readonly string[]) => all.toSorted();
  expect(uidsOf(live.map(({ labels }) => labels["vmlet.dev/uid"] as string))).toEqual(
    uidsOf(pods.map(({ metadata }) => metadata.uid as string)),
  );
  expect(pods.filter(({ status }) => status.containerStatuses[0].restartCount !== 0)).toEqual([]);
}

test(
  "an agent that is killed again and again while pods come and go has one machine for each pod afterwards",
  { timeout: LONG_MS },
  async () => {
    const agent = await place.startAgent();
    for (const i of times(30)) await place.createPod("default", `first-${i}`);
    // Each life lasts until the API server has seen so many writes.
    for (const [life, writes] of [2, 12, 5, 15].entries()) {
      await agent.kill("SIGKILL");
      for (const i of times(5)) await place.createPod("default", `life-${life}-${i}`);
      for (const i of times(3)) await place.client.delete(`/api/v1/namespaces/default/pods/first-${3 * life + i}`);
      const before = place.cluster.storage.revision;
      const starting = agent.start().catch(() => undefined);
      await waitFor({ what: `${writes} writes of life ${life}` }, async () =>
        must(place.cluster.storage.revision - before >= writes, place.cluster.storage.revision - before),
      );
      await agent.kill("SIGKILL");
      await starting;
    }
    await agent.start();
    await waitFor({ what: "the deleted pods to be gone" }, async () => {
      const names = (await place.pods("default")).map(({ metadata }) => metadata.name as string);
      must(names.length === 30 - 12 + 20, names);
    });
    await expectOneMachineEach(await place.untilAllRun("default"));
    await place.history.check("default");
  },
);

test("an agent that is stopped amid creates and sessions ends them with 1001, itself with 0, and leaves all machines as they are", async () => {
  const agent = await place.startAgent();
  for (const i of times(20)) await place.createPod("default", `runs-${i}`);
  const before = await place.untilAllRun("default");
  const api = { url: place.cluster.url, token: place.cluster.token };
  const sessions = await Promise.all(
    before.map(({ metadata }) => openExec(api, { namespace: "default", name: metadata.name }, ["sleep", "1000"])),
  );
  const closed = sessions.map(async (session) => (await once(session, "close"))[0] as number);
  await place.createNamespace("slow-backend");
  for (const i of times(50)) await place.createPod("slow-backend", `new-${i}`);
  // A namespace has no more than a quarter of the workers.
  await waitFor({ what: "creates under way" }, async () => {
    const inflight = await place.metric(agent, "vmlet_backend_inflight");
    must(inflight >= 8, inflight);
  });
  await agent.kill("SIGTERM");
  expect(await agent.ended()).toEqual({ code: 0, signal: null });
  expect(await Promise.all(closed)).toEqual(before.map(() => 1001));
  await expectOneMachineEach(await place.pods("default"));
  expect((await place.pods("default")).map(({ status }) => status)).toEqual(before.map(({ status }) => status));
});

test(
  "an agent that is short of memory may die of it, and each pod gets its one machine all the same",
  { timeout: LONG_MS },
  async () => {
    const agent = await place.startAgent({
      env: { NODE_OPTIONS: "--max-old-space-size=64" },
    });
    for (const i of times(400)) await place.createPod("default", `web-${i}`);
    const over = new AbortController();
    const supervised = (async () => {
      while (!over.signal.aborted) {
        await agent.ended();
        if (!over.signal.aborted) await agent.start().catch(() => undefined);
      }
    })();
    await expectOneMachineEach(await place.untilAllRun("default"));
    over.abort();
    await agent.kill("SIGKILL");
    await supervised;
    await place.history.check("default");
  },
);
