/**
 * One agent with a node full of pods that come and go: it keeps up, and grows no more for it. `SOAK_PODS`, `SOAK_RATE` (pods a
 * second that go, and as many that come) and `SOAK_MINUTES` change the measure; by hand it is an hour of it.
 */
import { expect, test } from "vitest";
import { WebSocket } from "ws";
import type { Json } from "../e2e/harness/client.ts";
import { freePort } from "../e2e/harness/ports.ts";
import { must, passTime, waitFor } from "../e2e/harness/wait.ts";
import { startPlace } from "../integration/agent/place.ts";

const PODS = Number(process.env["SOAK_PODS"] ?? 1000);
const RATE = Number(process.env["SOAK_RATE"] ?? 10);
const MINUTES = Number(process.env["SOAK_MINUTES"] ?? 60);
/** Far beyond what anything here takes on a busy machine. */
const PATIENCE_MS = 300_000;
/** Of the heap from one half of the time to the next, after the first has filled all caches. */
const GROWTH = 1.3;

const percentile = (values: readonly number[], share: number) =>
  values.toSorted((a, b) => a - b)[Math.min(values.length - 1, Math.floor(values.length * share))];

/**
 * Has a process collect all that it no longer needs: without it the heap is what happens not to be collected yet.
 *
 * @param inspector of Node, as `host:port`
 */
async function collectGarbage(inspector: string): Promise<void> {
  const [target] = (await (await fetch(`http://${inspector}/json/list`)).json()) as [Json];
  const socket = new WebSocket(target["webSocketDebuggerUrl"] as string);
  const { promise: answered, resolve, reject } = Promise.withResolvers<Json>();
  socket.once("error", reject);
  socket.once("close", () => reject(new Error("the inspector ended before the garbage was collected")));
  socket.once("open", () => socket.send(JSON.stringify({ id: 1, method: "HeapProfiler.collectGarbage" })));
  socket.once("message", (data: Buffer) => resolve(JSON.parse(data.toString())));
  const { error } = await answered.finally(() => socket.terminate());
  if (error) throw new Error(`the inspector refused to collect garbage: ${JSON.stringify(error)}`);
}

test(
  `${PODS} pods, of which ${RATE} a second are replaced for ${MINUTES} minutes, all run, and leave nothing behind`,
  { timeout: MINUTES * 60_000 + 3 * PATIENCE_MS },
  async () => {
    await using place = await startPlace();
    const inspector = `127.0.0.1:${await freePort()}`;
    const agent = await place.startAgent({
      config: { logLevel: "warn" },
      env: { NODE_OPTIONS: `--inspect=${inspector}` },
    });
    const create = (number: number) => place.createPod("default", `pod-${number}`);
    const untilSettled = async (first: number, last: number) => {
      await waitFor({ what: "all that is left to run, and nothing else", timeoutMs: PATIENCE_MS }, async () => {
        const pods = await place.pods("default");
        const machines = await place.machines();
        const late = pods.filter(({ status }) => status.phase !== "Running").map(({ metadata }) => metadata.name);
        must(pods.length === last - first && late.length === 0 && machines.length === pods.length, {
          pods: pods.length,
          machines: machines.length,
          late: late.slice(0, 5),
        });
      });
      return await place.pods("default");
    };
    let [first, last] = [0, 0];
    while (last < PODS) await create(last++);
    await untilSettled(first, last);

    const heap: number[] = [];
    const startsMs: number[] = [];
    const startOf = ({ metadata, status }: Json) =>
      Date.parse(status.conditions.find(({ type }: Json) => type === "Ready").lastTransitionTime as string) -
      Date.parse(metadata.creationTimestamp as string);
    for (let half = 0; half < 2; half++) {
      const begun = performance.now();
      for (let done = 0; performance.now() - begun < (MINUTES * 60_000) / 2; done++) {
        // As many as are due by now: what the machine was too busy for is made up for.
        const due = ((performance.now() - begun) / 1000) * RATE;
        if (done >= due) {
          await passTime(1000 / RATE, "the rate is what is tried");
          done--;
          continue;
        }
        await Promise.all([create(last++), place.client.delete(`/api/v1/namespaces/default/pods/pod-${first++}`)]);
      }
      startsMs.push(...(await untilSettled(first, last)).map(startOf));
      await collectGarbage(inspector);
      heap.push(await place.metric(agent, "nodejs_heap_size_used_bytes"));
    }
    console.log(
      JSON.stringify({
        replaced: first,
        startSeconds: { p50: percentile(startsMs, 0.5)! / 1000, p99: percentile(startsMs, 0.99)! / 1000 },
        heapMiB: heap.map((bytes) => Math.round(bytes / 2 ** 20)),
        eventLoopLagP99: await place.metric(agent, "nodejs_eventloop_lag_p99_seconds"),
        cpuSeconds: await place.metric(agent, "process_cpu_seconds_total"),
      }),
    );
    expect(first).toBeGreaterThan(0);
    expect(heap[1]! / heap[0]!).toBeLessThan(GROWTH);
    await place.history.check("default");
  },
);
