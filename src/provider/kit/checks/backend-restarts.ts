/** What must survive a restart of the backend itself: nothing that is asked of it may be forgotten. */
import type { Check } from "../check.ts";
import { FOREVER, mainOf, outputOf, summary, Violation, type CheckContext } from "../context.ts";

const RULES: readonly Omit<Check, "needsRestart">[] = [
  {
    name: "backend-restart/machines-run-on",
    why: "Pods must not notice that what made them was replaced.",
    async run(context: CheckContext) {
      const { id } = await context.running(FOREVER, { labels: context.labelsOf("runs-on") });
      const before = mainOf(await context.get(id));
      await context.restarted();
      const machine = await context.get(id);
      const main = mainOf(machine);
      context.expect(
        main.state === "running" && main.id === before.id && main.restart_count === before.restart_count,
        `the same instance, ${before.id}, to run on`,
        `it is ${summary(machine)}, instance ${main.id}`,
      );
    },
  },
  {
    name: "backend-restart/logs-survive",
    why: "What was printed before is what somebody looks for after a failure.",
    async run(context: CheckContext) {
      const { id } = await context.saying("before", `echo before; ${FOREVER}`, { labels: context.labelsOf("logs") });
      await context.restarted();
      const shown = await outputOf(context, id);
      context.expect(shown === "before", "the line that was printed before", `it is ${JSON.stringify(shown)}`);
    },
  },
  {
    name: "backend-restart/exit-codes-survive",
    why: "A Job's result would be lost.",
    async run(context: CheckContext) {
      const { id } = await context.over("exit 21", { labels: context.labelsOf("exit-codes") });
      await context.restarted();
      const machine = await context.get(id);
      context.expect(
        machine.state === "stopped" && mainOf(machine).terminated?.exit_code === 21,
        "a machine that ended with 21 to be so still",
        `it is ${summary(machine)}`,
      );
    },
  },
  {
    name: "backend-restart/an-end-meanwhile-is-told",
    why: "Containers do not wait for the backend with their ends.",
    async run(context: CheckContext) {
      const { id } = await context.running("sleep 2; exit 22", { labels: context.labelsOf("meanwhile") });
      await context.restarted();
      const code = mainOf(await context.untilOver(id)).terminated?.exit_code;
      context.expect(code === 22, "exit code 22 of a container that ended about then", `it is ${code}`);
    },
  },
  {
    name: "backend-restart/tombstones-stay",
    why: "A create that was on its way would bring back what was deleted.",
    async run(context: CheckContext) {
      const id = context.id();
      const { signal } = context;
      const spec = context.spec(FOREVER, { labels: context.labelsOf("tombstone") });
      await context.provider.createPod(id, spec, { signal });
      await context.delete(id);
      await context.untilDeleted(id);
      await context.restarted();
      await context.expectCode(
        context.provider.createPod(id, spec, { signal }),
        "gone",
        "a create of an id that was deleted before",
      );
    },
  },
  {
    name: "backend-restart/revisions-do-not-fall",
    why: "An agent that has seen more would take everything that follows for old.",
    async run(context: CheckContext) {
      const machine = await context.running(FOREVER, { labels: context.labelsOf("revisions") });
      const { revision } = await context.list();
      await context.restarted();
      const after = await context.list();
      context.expect(after.revision >= revision, `a revision of at least ${revision}`, `it is ${after.revision}`);
      const shown = await context.get(machine.id);
      context.expect(
        shown.version >= machine.version,
        `a version of at least ${machine.version}`,
        `it is ${shown.version}`,
      );
    },
  },
  {
    name: "backend-restart/a-repeated-create-is-the-same-machine",
    why: "The reply to a create is lost exactly when a backend goes down.",
    async run(context: CheckContext) {
      const id = context.id();
      const { signal } = context;
      const spec = context.spec(FOREVER, { labels: context.labelsOf("repeated") });
      const first = await context.provider.createPod(id, spec, { signal });
      await context.restarted();
      const second = await context.provider.createPod(id, spec, { signal });
      context.expect(
        second.created_at === first.created_at,
        `the machine of ${first.created_at}`,
        `it is one of ${second.created_at}`,
      );
    },
  },
  {
    name: "backend-restart/another-spec-is-still-a-conflict",
    why: "What a machine was made from is remembered as long as the machine.",
    async run(context: CheckContext) {
      const id = context.id();
      const { signal } = context;
      await context.provider.createPod(id, context.spec(FOREVER, { labels: context.labelsOf("conflict") }), { signal });
      await context.restarted();
      const other = context.spec("sleep 3602", { labels: context.labelsOf("conflict") });
      await context.expectCode(
        context.provider.createPod(id, other, { signal }),
        "conflict",
        "a create with another specification",
      );
    },
  },
  {
    name: "backend-restart/lists-are-whole",
    why: "A machine that a list leaves out while the backend comes up looks lost.",
    async run(context: CheckContext) {
      const ids: string[] = [];
      for (let i = 0; i < 3; i++) ids.push((await context.running(FOREVER, { labels: context.labelsOf("listed") })).id);
      await context.restarted();
      const { items } = await context.list();
      const shown = items.map(({ id }) => id).toSorted((a, b) => a.localeCompare(b));
      context.expect(
        shown.join() === ids.toSorted((a, b) => a.localeCompare(b)).join(),
        `the machines ${ids.join(", ")} in the first list`,
        `there are ${shown.join(", ") || "none"}`,
      );
    },
  },
  {
    name: "backend-restart/a-machine-can-be-stopped",
    why: "What cannot be stopped any more runs for nobody.",
    async run(context: CheckContext) {
      const { id } = await context.running(FOREVER, { labels: context.labelsOf("stoppable") });
      await context.restarted();
      await context.stop(id, 1);
      await context.untilOver(id);
    },
  },
  {
    name: "backend-restart/events-go-on-or-are-gone",
    needs: ["events"],
    why: "A watch goes on from the revision that it knows; a gap would never be noticed.",
    async run(context: CheckContext) {
      const { revision } = await context.list();
      const { id } = await context.running(FOREVER, { labels: context.labelsOf("watched") });
      await context.restarted();
      const stop = new AbortController();
      const cancel = context.clock.after(context.patienceMs, () => stop.abort());
      const signal = AbortSignal.any([context.signal, stop.signal]);
      try {
        for await (const event of context.provider.watchPods!(revision, { signal, labels: context.labels }))
          if (event.machine?.id === id) return;
      } catch (thrown) {
        await context.expectCode(Promise.reject(thrown), "gone", "a watch from before the restart");
        return;
      } finally {
        cancel();
        stop.abort();
      }
      throw new Violation(`an event of machine ${id}, or the code gone`, "there was neither");
    },
  },
];

export const BACKEND_RESTART_CHECKS: readonly Check[] = RULES.map((rule) => ({ ...rule, needsRestart: true }));
