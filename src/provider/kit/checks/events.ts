/** Events: how the agent learns of changes at once. */
import type { MachineEvent } from "../../provider.ts";
import type { Check } from "../check.ts";
import { FOREVER, mainOf, Violation, type CheckContext } from "../context.ts";

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
  {
    name: "events/tell-of-containers-too",
    needs: ["events"],
    why: "A restart changes no machine's state; it would be seen a minute late.",
    async run(context: CheckContext) {
      const { revision } = await context.list();
      const backoff = { initial_ms: 100, max_ms: 200 };
      const { id } = await context.create("sleep 0.3; exit 1", { restart_policy: "always", backoff });
      await watch(context, revision, `an event with a restart of machine ${id}`, (events) =>
        events.some(({ machine }) => machine.id === id && mainOf(machine).restart_count > 0),
      );
    },
  },
  {
    name: "events/have-the-whole-machine",
    needs: ["events"],
    why: "What an event leaves out is taken for gone.",
    async run(context: CheckContext) {
      const { revision } = await context.list();
      const { id } = await context.over("exit 16");
      const shown = await context.settled(id);
      const events = await watch(context, revision, `version ${shown.version} of machine ${id} as an event`, (seen) =>
        seen.some(({ machine }) => machine.id === id && machine.version === shown.version),
      );
      const told = events.findLast(({ machine }) => machine.id === id)?.machine;
      context.expect(
        JSON.stringify(sorted(told)) === JSON.stringify(sorted(shown)),
        "an event to have the machine as a get of the same version shows it",
        `they are ${JSON.stringify(told).slice(0, 300)} and ${JSON.stringify(shown).slice(0, 300)}`,
      );
    },
  },
  {
    name: "events/go-on-where-they-broke-off",
    needs: ["events"],
    why: "A stream breaks sooner or later; what is told twice or not at all is wrong for good.",
    async run(context: CheckContext) {
      const { revision } = await context.list();
      const first = await context.create(FOREVER);
      const before = await watch(context, revision, `an event of machine ${first.id}`, (events) => events.length > 0);
      const last = before.at(-1)!.revision;
      const { id } = await context.create(FOREVER);
      const after = await watch(context, last, `an event of machine ${id}, made while nobody watched`, (events) =>
        events.some(({ machine }) => machine.id === id),
      );
      const repeated = after.find((event) => event.revision <= last);
      context.expect(repeated === undefined, `events above revision ${last} alone`, `one is of ${repeated?.revision}`);
    },
  },
  {
    name: "events/have-the-machine's-revision",
    needs: ["events"],
    why: "An agent compares what a list, a get and an event say of one machine by it.",
    async run(context: CheckContext) {
      const { revision } = await context.list();
      const { id } = await context.create(FOREVER, { labels: context.labelsOf("revision") });
      const [event] = await watch(context, revision, `an event of machine ${id}`, (events) => events.length > 0);
      context.expect(
        event!.machine.revision === event!.revision,
        "an event's revision to be that of its machine",
        `they are ${event!.revision} and ${event!.machine.revision}`,
      );
    },
  },
  {
    name: "events/come-soon",
    needs: ["events"],
    why: "A pod is seen to run when its event comes.",
    async run(context: CheckContext) {
      const soon = context.labelsOf("soon");
      const { id: first } = await context.over("exit 0", { labels: soon });
      await context.settled(first);
      const { revision } = await context.list();
      let madeAt = 0;
      let seenAt = 0;
      const seen = watch(context, revision, "an event of a machine that was made", (events) => {
        seenAt = context.clock.monotonic();
        return events.length > 0;
      });
      seen.catch(() => {});
      await context.clock.sleep(300, context.signal);
      const startedAt = context.clock.monotonic();
      await context.create(FOREVER, { labels: soon });
      madeAt = context.clock.monotonic();
      await seen;
      // How busy the backend is just now, the create itself tells.
      const tolerance = 3000 + 5 * (madeAt - startedAt);
      context.expect(
        seenAt - madeAt < tolerance,
        `the event within ${Math.round(tolerance)} ms of the reply to the create`,
        `it came after ${Math.round(seenAt - madeAt)} ms`,
      );
    },
  },
];

/** With the keys of every object in one order. */
function sorted(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(sorted);
  if (typeof value !== "object" || value === null) return value;
  return Object.fromEntries(
    Object.entries(value)
      .toSorted(([a], [b]) => (a < b ? -1 : 1))
      .map(([key, inner]) => [key, sorted(inner)]),
  );
}
