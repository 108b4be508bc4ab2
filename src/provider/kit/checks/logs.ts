/** Logs: what `kubectl logs` and its options ask for. */
import type { LogLine } from "../../provider.ts";
import type { Check } from "../check.ts";
import { containerOf, FOREVER, mainOf, type CheckContext } from "../context.ts";

const THREE = "echo one; sleep 0.2; echo two >&2; sleep 0.2; echo three";

const texts = (lines: readonly LogLine[]): string => lines.map(({ content }) => content.toString()).join(" ");

/** Three lines, the second on stderr, of a container that has ended. */
async function threeLines(context: CheckContext): Promise<{ id: string; lines: LogLine[] }> {
  const { id } = await context.over(THREE);
  return { id, lines: await context.logs(id) };
}

export const LOG_CHECKS: readonly Check[] = [
  {
    name: "logs/are-whole-and-in-order",
    why: "They are the first thing that anybody reads when something went wrong.",
    async run(context: CheckContext) {
      const { lines } = await threeLines(context);
      const shown = lines.map(({ stream, content }) => `${stream}:${content.toString()}`).join(" ");
      context.expect(
        shown === "stdout:one stderr:two stdout:three",
        "the three lines with their streams, in order",
        `they are ${shown || "none"}`,
      );
    },
  },
  {
    name: "logs/times-have-nine-decimals",
    why: "`--timestamps` prints them, and `--since-time` compares them.",
    async run(context: CheckContext) {
      const { lines } = await threeLines(context);
      for (const { at } of lines) {
        context.expect(
          /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z$/.test(at),
          "times as 2026-10-06T00:17:09.669794202Z",
          `one is ${at}`,
        );
      }
    },
  },
  {
    name: "logs/tail",
    why: "`kubectl logs --tail` is how people avoid reading everything.",
    async run(context: CheckContext) {
      const { id } = await threeLines(context);
      const last = texts(await context.logs(id, { tail: 2 }));
      context.expect(last === "two three", "the last two lines", `they are ${last || "none"}`);
      const none = await context.logs(id, { tail: 0 });
      context.expect(none.length === 0, "no line with tail 0", `there are ${none.length}`);
    },
  },
  {
    name: "logs/since",
    why: "`kubectl logs --since` must not show what was before.",
    async run(context: CheckContext) {
      const { id, lines } = await threeLines(context);
      const since = lines[1]?.at ?? "";
      const shown = texts(await context.logs(id, { since }));
      context.expect(
        shown === "two three",
        `the lines from ${since} on, its own included`,
        `they are ${shown || "none"}`,
      );
    },
  },
  {
    name: "logs/one-stream",
    why: "`kubectl logs --stream` asks for it.",
    async run(context: CheckContext) {
      const { id } = await threeLines(context);
      const shown = texts(await context.logs(id, { stream: "stderr" }));
      context.expect(shown === "two", "only what went to stderr", `it is ${shown || "nothing"}`);
    },
  },
  {
    name: "logs/limit",
    why: "`--limit-bytes` protects the caller from a log of gigabytes.",
    async run(context: CheckContext) {
      const { id } = await threeLines(context);
      const bytes = (await context.logs(id, { limitBytes: 5 })).reduce((sum, { content }) => sum + content.length, 0);
      context.expect(bytes > 0 && bytes <= 5, "no more than 5 bytes", `there are ${bytes}`);
    },
  },
  {
    name: "logs/follow-ends-with-the-container",
    why: "`kubectl logs -f` of a Job must return when the Job is done, with everything it printed.",
    async run(context: CheckContext) {
      const { id } = await context.running("sleep 0.5; echo last");
      const shown = texts(await context.logs(id, { follow: true }));
      context.expect(shown === "last", "the line that came while following", `it is ${shown || "nothing"}`);
      await context.until(id, "it to have ended when the log did", (machine) => mainOf(machine).state === "terminated");
    },
  },
  {
    name: "logs/previous",
    why: "`kubectl logs -p` tells why a container crashed, when the next one runs already.",
    async run(context: CheckContext) {
      const { id } = await context.create("echo crashed; sleep 0.5; exit 1", {
        restart_policy: "always",
        backoff: { initial_ms: 100, max_ms: 100 },
      });
      await context.until(id, "a restart", (machine) => mainOf(machine).restart_count > 0);
      // The instance before the current one changes with every restart: only what was read between two looks at the
      // same one counts.
      for (;;) {
        const before = mainOf(await context.until(id, "it to run", (machine) => mainOf(machine).state === "running"));
        const lines = await context.logs(id, { previous: true });
        const after = mainOf(await context.get(id));
        if (after.state !== "running" || after.restart_count !== before.restart_count) continue;
        context.expect(
          texts(lines) === "crashed",
          "the previous instance's line",
          `it is ${texts(lines) || "nothing"}`,
        );
        const end = after.last?.finished_at ?? "";
        context.expect(
          (lines[0]?.at.slice(0, 23) ?? "") <= end.slice(0, 23),
          `a line from before ${end}`,
          `it is of ${lines[0]?.at}`,
        );
        return;
      }
    },
  },
  {
    name: "logs/of-what-waits-to-start-are-a-conflict",
    needs: ["init_containers"],
    why: "An empty log would say that it ran and was silent, and `not_found` that it is not there.",
    async run(context: CheckContext) {
      const { id } = await context.create("echo main", {
        init_containers: [context.container(FOREVER, { name: "first" })],
      });
      await context.until(id, "its init container to run", (machine) => {
        return containerOf(machine, "first").state === "running";
      });
      for (const follow of [false, true])
        await context.expectCode(
          context.logs(id, { follow }),
          "conflict",
          `reading the log of a container that has not started${follow ? ", with follow" : ""}`,
        );
    },
  },
  {
    name: "logs/begin-with-the-start",
    why: "`kubectl logs` right after `kubectl apply` must say that there is no log yet, or show what there is.",
    async run(context: CheckContext) {
      const { id } = await context.create(`echo begun; ${FOREVER}`);
      await context.untilTrue("the log to have the container's first line", async () => {
        let lines: LogLine[];
        try {
          lines = await context.logs(id);
        } catch (thrown) {
          // What is not reached yet is not known.
          const early = context.expectCode(
            Promise.reject(thrown),
            ["conflict", "unavailable"],
            "reading the log of a container that has perhaps not started",
          );
          await early;
          return false;
        }
        if (lines.length > 0) return texts(lines) === "begun";
        const { state, restart_count } = mainOf(await context.get(id));
        context.expect(
          state !== "waiting" || restart_count > 0,
          "`conflict` for the log of a container that has not started",
          "an empty log came, and the container was still waiting to start",
        );
        return false;
      });
    },
  },
  {
    name: "logs/unknown-container-is-not-found",
    why: "A typing error must not look like an empty log.",
    async run(context: CheckContext) {
      const { id } = await context.running(FOREVER);
      await context.expectCode(
        context.logs(id, {}, "nobody"),
        "not_found",
        "reading the log of a container that the machine has not",
      );
    },
  },
];
