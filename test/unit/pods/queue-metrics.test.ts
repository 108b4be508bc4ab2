import { expect, test } from "vitest";
import { observeQueue, queueMetrics } from "../../../src/agent/pod-metrics.ts";
import { KeyedQueue } from "../../../src/queue/keyed-queue.ts";
import { unusedMetrics } from "../../../src/telemetry/metrics.ts";
import { VirtualClock } from "../../support/virtual-clock.ts";

test("the work queue of a node shows what waits, what is under way and for how long, and what was tried again", async () => {
  const clock = new VirtualClock();
  const metrics = unusedMetrics();
  const stop = new AbortController();
  const queue = new KeyedQueue({
    clock,
    random: () => 0,
    concurrency: 1,
    metrics: queueMetrics(metrics, "vm-1"),
    handle: (key, signal) => (key === "hangs" ? clock.sleep(60_000, signal) : Promise.reject(new Error("fails"))),
  });
  queue.add("fails");
  queue.add("hangs");
  queue.add("waits");
  const running = queue.run(stop.signal);
  await clock.advance(30_000);
  observeQueue(metrics, "vm-1", queue);
  const text = await metrics.render();
  for (const line of [
    'workqueue_adds_total{name="vm-1"} 4',
    'workqueue_depth{name="vm-1"} 2',
    'workqueue_retries_total{name="vm-1"} 1',
    'workqueue_work_duration_seconds_count{name="vm-1"} 1',
    'workqueue_unfinished_work_seconds{name="vm-1"} 30',
    'workqueue_longest_running_processor_seconds{name="vm-1"} 30',
  ])
    expect(text).toContain(`${line}\n`);
  stop.abort();
  await running;
});
