/** Lists: how the agent learns the state of everything, and finds what it lost. */
import type { Check } from "../check.ts";
import { FOREVER, type CheckContext } from "../context.ts";

export const LIST_CHECKS: readonly Check[] = [
  {
    name: "list/shows-what-was-just-created",
    why: "An agent that lists and misses a machine would take it for lost.",
    async run(context: CheckContext) {
      const { id } = await context.create(FOREVER);
      const { items } = await context.list();
      context.expect(
        items.some((machine) => machine.id === id),
        "a machine in the list right after its create",
        "it is not there",
      );
    },
  },
  {
    name: "list/selects-by-every-label",
    why: "Machines of other nodes and clusters must never be seen, and so never swept.",
    async run(context: CheckContext) {
      const mine = { ...context.labels, role: "mine" };
      const { id } = await context.create(FOREVER, { labels: mine });
      await context.create(FOREVER, { labels: { ...context.labels, role: "other" } });
      await context.untilTrue("both machines in the list", async () => (await context.list()).items.length === 2);
      const { items } = await context.list({ labels: mine });
      const ids = items.map((machine) => machine.id).join(", ");
      context.expect(ids === id, `only ${id}`, `the list has ${ids || "nothing"}`);
    },
  },
  {
    name: "list/has-tombstones-only-when-asked",
    why: "They say how a machine ended, to callers that ask for them; in any other list the machine would look alive.",
    async run(context: CheckContext) {
      const { id } = await context.running(FOREVER);
      await context.delete(id);
      await context.untilDeleted(id);
      const without = await context.list();
      context.expect(without.items.length === 0, "no tombstone in a plain list", "there is one");
      const { items } = await context.list({ includeDeleted: true });
      context.expect(
        items[0]?.id === id && items[0].state === "deleted",
        "the tombstone when it is asked for",
        `the list has ${items.length} machines`,
      );
    },
  },
  {
    name: "list/is-whole-under-churn",
    why: "A machine that a list leaves out once looks lost.",
    async run(context: CheckContext) {
      const ids: string[] = [];
      for (let i = 0; i < 6; i++) ids.push((await context.create(FOREVER)).id);
      await context.untilTrue(
        "six machines in the list",
        async () => (await context.list()).items.length === ids.length,
      );
      let isChurning = true;
      const churn = (async () => {
        while (isChurning) {
          const { id } = await context.create(FOREVER);
          await context.delete(id);
        }
      })();
      try {
        for (let round = 0; round < 10; round++) {
          const { items } = await context.list();
          for (const id of ids) {
            const count = items.filter((machine) => machine.id === id).length;
            context.expect(
              count === 1,
              `machine ${id} once in every list`,
              `it is there ${count} times while others come and go`,
            );
          }
        }
      } finally {
        isChurning = false;
        await churn;
      }
    },
  },
  {
    name: "list/revision-covers-its-items",
    why: "Events from the list's revision on would otherwise begin with the past, or miss something.",
    async run(context: CheckContext) {
      const machine = await context.running(FOREVER);
      const { revision } = await context.list();
      context.expect(revision >= machine.revision, `a revision of at least ${machine.revision}`, `it is ${revision}`);
    },
  },
  {
    name: "list/items-are-whole-machines",
    why: "One list is how an agent learns the state of everything; it never asks per machine.",
    async run(context: CheckContext) {
      const { id } = await context.over("exit 15", { labels: context.labelsOf("whole") });
      const machine = await context.settled(id);
      const { items } = await context.list();
      context.expect(
        items[0]?.version === machine.version && items[0].revision === machine.revision,
        `version ${machine.version} and revision ${machine.revision} in the list, as in a get`,
        `they are ${items[0]?.version} and ${items[0]?.revision}`,
      );
      const { reason: _reason, ...shown } = machine.containers[0]!.terminated!;
      const listed = items[0].containers[0]?.terminated;
      context.expect(
        listed?.finished_at === shown.finished_at && listed.exit_code === shown.exit_code,
        "how its container ended, as in a get",
        `it is ${JSON.stringify(listed)}`,
      );
    },
  },
  {
    name: "list/revisions-never-fall",
    why: "A list with an older revision than one before would undo what was seen.",
    async run(context: CheckContext) {
      let last = 0;
      for (let round = 0; round < 4; round++) {
        const { revision } = await context.list();
        context.expect(revision >= last, `a revision of at least ${last}`, `it is ${revision}`);
        last = revision;
        await context.create(FOREVER, { labels: context.labelsOf("fall") });
      }
    },
  },
  {
    name: "list/a-stopping-machine-is-listed",
    why: "Its pod waits for the end; if it vanished meanwhile, it would look lost.",
    async run(context: CheckContext) {
      const { id } = await context.saying("ready", "trap '' TERM; echo ready; sleep 3600");
      await context.stop(id, 60);
      const { items } = await context.list();
      context.expect(
        items.some((machine) => machine.id === id),
        "a machine in the list while it stops",
        "it is not there",
      );
    },
  },
];
