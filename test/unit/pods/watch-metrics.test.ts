import { expect, test } from "vitest";
import { observeWatches } from "../../../src/agent/pod-metrics.ts";
import { unusedMetrics } from "../../../src/telemetry/metrics.ts";
import { VirtualClock } from "../../support/virtual-clock.ts";

const reflector = (lastActivityAt: number | undefined, watches: number, expired: number) => ({
  lastActivityAt,
  counters: {
    lists: 1,
    relists: { expired, too_large_resource_version: 0, invalid_resource_version: 0, too_large_event: 0 },
    watches,
    watchErrors: 1,
    events: 0,
    bookmarks: 0,
    skipped: 2,
  },
});

test("the watches of all nodes of a process are counted together, and the most silent one shows", async () => {
  const clock = new VirtualClock(0);
  await clock.advance(100_000);
  const metrics = unusedMetrics();
  metrics.onScrape(() =>
    observeWatches(metrics, clock, [
      reflector(30_000, 2, 3),
      reflector(90_000, 5, 0),
      // Has not been started.
      reflector(undefined, 0, 0),
    ]),
  );
  await metrics.render();
  const text = await metrics.render();
  for (const line of [
    'vmlet_informer_last_event_timestamp_seconds{resource="pods"} 30',
    'vmlet_watch_starts_total{resource="pods"} 7',
    'vmlet_watch_errors_total{resource="pods"} 3',
    'vmlet_informer_relists_total{resource="pods",reason="expired"} 3',
    'vmlet_informer_skipped_total{resource="pods"} 6',
  ])
    expect(text).toContain(`${line}\n`);
});
