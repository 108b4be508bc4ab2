import { describe, expect, test } from "vitest";
import { isProviderError } from "../../../src/provider/errors.ts";
import { MachineEvents } from "../../../src/provider/machine-events.ts";
import { unseenMachine } from "../../../src/provider/tombstone.ts";

function published(events: MachineEvents, ...revisions: number[]): MachineEvents {
  for (const revision of revisions) events.publish({ ...unseenMachine(`m${revision}`, 0), revision });
  return events;
}

/** The revisions after `since` that are known by now. */
async function seen(events: MachineEvents, since: number): Promise<number[]> {
  const revisions: number[] = [];
  if (since === events.revision) return revisions;
  for await (const { revision } of events.watch(since, new AbortController().signal)) {
    revisions.push(revision);
    if (revision === events.revision) break;
  }
  return revisions;
}

const isGone = async (events: MachineEvents, since: number): Promise<boolean> =>
  await seen(events, since).then(
    () => false,
    (thrown: unknown) => isProviderError(thrown, "gone"),
  );

describe("the changes of a backend's machines", () => {
  test("are told in order from any revision that is remembered", async () => {
    const events = published(new MachineEvents({ limit: 10 }), 1, 2, 3);
    expect(await Promise.all([0, 1, 2, 3].map((since) => seen(events, since)))).toEqual([[1, 2, 3], [2, 3], [3], []]);
  });

  test("are remembered up to the limit, however many there were", async () => {
    const events = published(new MachineEvents({ limit: 3 }), 1, 2, 3, 4, 5, 6, 7);
    expect(await seen(events, 4)).toEqual([5, 6, 7]);
    expect(await isGone(events, 3)).toBe(true);
  });

  test("may leave out revisions, which a watcher may ask from all the same", async () => {
    const events = published(new MachineEvents({ limit: 2 }), 2, 5, 9);
    expect(await Promise.all([2, 3, 7].map((since) => seen(events, since)))).toEqual([[5, 9], [5, 9], [9]]);
  });

  test("of another life are gone: from before the first revision, or after the last", async () => {
    const events = published(new MachineEvents({ limit: 3, revision: 100 }), 101);
    expect(await Promise.all([99, 100, 102].map((since) => isGone(events, since)))).toEqual([true, false, true]);
  });

  test("are awaited by a watcher that has seen all", async () => {
    const events = published(new MachineEvents({ limit: 3 }), 1);
    const next = events.watch(1, new AbortController().signal).next();
    published(events, 2);
    expect((await next).value).toMatchObject({ revision: 2 });
  });

  test("end with the watcher's signal", async () => {
    const stop = new AbortController();
    const next = new MachineEvents({ limit: 3 }).watch(0, stop.signal).next();
    stop.abort();
    expect((await next).done).toBe(true);
  });

  test("are gone for a watcher that has fallen too far behind", async () => {
    const events = published(new MachineEvents({ limit: 2 }), 1);
    const watcher = events.watch(0, new AbortController().signal);
    await watcher.next();
    published(events, 2, 3, 4);
    await expect(watcher.next()).rejects.toSatisfy((thrown: unknown) => isProviderError(thrown, "gone"));
  });
});
