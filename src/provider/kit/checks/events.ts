/** Events: how the agent learns of changes at once. */
import type { MachineEvent } from "../../provider.ts";
import type { Check } from "../check.ts";
import { Violation, type CheckContext } from "../context.ts";

const FOREVER = "sleep 3600";

/** Watches from `since` until `isEnough`. */
async function watch(
  context: CheckContext,
  since: number,
  what: string,
  isEnough: (events: MachineEvent[]) => boolean,
): Promise<MachineEvent[]> {
  const stop = new AbortController();
  const cancel = context.clock.after(context.patienceMs, () => stop.abort());
  const events: MachineEvent[] = [];
  const source =
    context.provider.watchPods?.(since, {
      signal: AbortSignal.any([context.signal, stop.signal]),
      labels: context.labels,
    }) ?? [];
  try {
    for await (const event of source) {
      if (event.machine === undefined)
        throw new Violation("events of valid machines", `${event.unknown.id} is not valid: ${event.unknown.reason}`);
      events.push(event);
      if (isEnough(events)) return events;
    }
  } finally {
    cancel();
    stop.abort();
  }
  const seen = events.map(({ machine }) => `${machine.id} ${machine.state}`).join(", ");
  throw new Violation(`${what} within ${context.patienceMs / 1000} s`, `the events were ${seen || "none"}`);
}

/** A machine's whole life, after the revision that is returned. */
async function lifeAfterList(context: CheckContext): Promise<{ id: string; revision: number }> {
  const { revision } = await context.list();
  const { id } = await context.running(FOREVER);
  await context.delete(id);
  await context.untilDeleted(id);
  return { id, revision };
}

export const EVENT_CHECKS: readonly Check[] = [
  {
    name: "events/from-a-list-miss-nothing",
    needs: ["events"],
    why: "List and then watch is the whole protocol; a gap between the two is a change that nobody sees.",
    async run(context: CheckContext) {
      const { id, revision } = await lifeAfterList(context);
      await watch(context, revision, `the end of machine ${id}, which came after the list`, (events) =>
        events.some(({ machine }) => machine.id === id && machine.state === "deleted"),
      );
    },
  },
  {
    name: "events/come-while-watching",
    needs: ["events"],
    why: "A pod's start and end must show at once, not at the next list.",
    async run(context: CheckContext) {
      const { revision } = await context.list();
      const id = context.id();
      const seen = watch(context, revision, "an event of a machine that is created while watching", (events) =>
        events.some(({ machine }) => machine.id === id),
      );
      // Its rejection is awaited below, after the create.
      seen.catch(() => {});
      await context.clock.sleep(300, context.signal);
      await context.provider.createPod(id, context.spec(FOREVER), { signal: context.signal });
      await seen;
    },
  },
  {
    name: "events/revisions-grow",
    needs: ["events"],
    why: "A watch that broke goes on from the last revision; going back would repeat the past as news.",
    async run(context: CheckContext) {
      const { revision } = await context.list();
      for (let i = 0; i < 3; i++) await context.create(FOREVER);
      const events = await watch(
        context,
        revision,
        "events of three machines",
        (seen) => new Set(seen.map(({ machine }) => machine.id)).size >= 3,
      );
      let last = revision;
      for (const event of events) {
        context.expect(event.revision > last, `a revision above ${last}`, `it is ${event.revision}`);
        last = event.revision;
      }
    },
  },
  {
    name: "events/select-by-label",
    needs: ["events"],
    why: "An agent must not be woken by other nodes' machines, let alone act on them.",
    async run(context: CheckContext) {
      const { revision } = await context.list();
      const { id: other } = await context.create(FOREVER, { labels: { "vmlet.dev/conformance": "other" } });
      const { id } = await context.create(FOREVER);
      const events = await watch(context, revision, `an event of machine ${id}`, (seen) =>
        seen.some(({ machine }) => machine.id === id),
      );
      context.expect(
        !events.some(({ machine }) => machine.id === other),
        "no event of a machine with other labels",
        "there is one",
      );
    },
  },
  {
    name: "events/an-unknown-revision-is-gone",
    needs: ["events"],
    why: "After a backend was set back, a watch from a revision it never reached would wait for ever and miss everything.",
    async run(context: CheckContext) {
      const { revision } = await context.list();
      const first = watch(context, revision + 1_000_000_000, "an error", () => true);
      await context.expectCode(first, "gone", "a watch from a revision that the backend never reached");
    },
  },
];
