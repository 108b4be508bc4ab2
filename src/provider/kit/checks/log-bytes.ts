/** Logs byte for byte, and as they come. */
import type { LogLine } from "../../provider.ts";
import type { Check } from "../check.ts";
import { FOREVER, mainOf, outputOf, textOf, Violation, type CheckContext } from "../context.ts";

const LONG = 40_000;

/** Follows a container's log until `isEnough`, or until it ends. */
async function follow(
  context: CheckContext,
  id: string,
  what: string,
  isEnough: (text: string) => boolean,
  tail?: number,
): Promise<string> {
  const stop = new AbortController();
  const cancel = context.clock.after(context.patienceMs, () => stop.abort());
  const lines: LogLine[] = [];
  try {
    const signal = AbortSignal.any([context.signal, stop.signal]);
    for await (const line of context.provider.getLogs(id, "main", { follow: true, tail, signal })) {
      lines.push(line);
      if (isEnough(textOf(lines))) return textOf(lines);
    }
  } catch (thrown) {
    if (!stop.signal.aborted) throw thrown;
  } finally {
    cancel();
    stop.abort();
  }
  throw new Violation(
    `${what} within ${context.patienceMs / 1000} s`,
    `what came was ${JSON.stringify(textOf(lines))}`,
  );
}

export const LOG_BYTE_CHECKS: readonly Check[] = [
  {
    name: "logs/any-bytes",
    why: "Programs print what they like; a log that changes it shows something else than happened.",
    async run(context: CheckContext) {
      const { id } = await context.over("printf 'a\\000b\\377\\376c\\r\\033[1m\\n'");
      const wanted = Buffer.from([97, 0, 98, 255, 254, 99, 13, 27, 91, 49, 109]);
      const shown = Buffer.concat((await context.logs(id)).map(({ content }) => content));
      context.expect(
        shown.equals(wanted),
        `the bytes ${wanted.toString("hex")}, which are no text`,
        `they are ${shown.toString("hex")}`,
      );
    },
  },
  {
    name: "logs/blanks-are-kept",
    why: "Stack traces, YAML and empty lines mean something by them.",
    async run(context: CheckContext) {
      const { id } = await context.over("printf '  two before \\n\\n\\ttab\\n'");
      const shown = await outputOf(context, id);
      const wanted = "  two before \n\n\ttab";
      context.expect(shown === wanted, JSON.stringify(wanted), `it is ${JSON.stringify(shown)}`);
    },
  },
  {
    name: "logs/long-lines-are-one",
    why: "A line of JSON that is cut in two is two lines of garbage.",
    async run(context: CheckContext) {
      const { id } = await context.over(`printf '%0${LONG}d\\n' 7; echo end`);
      const lines = await context.logs(id);
      const size = lines.slice(0, -1).reduce((sum, { content }) => sum + content.length, 0);
      const wholes = lines.filter(({ partial }) => !partial).length;
      context.expect(
        wholes === 2 && size === LONG,
        `a line of ${LONG} bytes as one, all but its last part marked P, and the next line behind it`,
        `there are ${lines.length} records, ${wholes} of them marked F, and ${size} bytes`,
      );
    },
  },
  {
    name: "logs/without-a-newline-at-the-end",
    why: "The last words of a program that crashes seldom have one.",
    async run(context: CheckContext) {
      const { id } = await context.over("printf 'last words'");
      const shown = await outputOf(context, id);
      context.expect(shown === "last words", "what was printed without a newline", `it is ${JSON.stringify(shown)}`);
    },
  },
  {
    name: "logs/many-lines",
    why: "What is left out of a log is what somebody looks for.",
    async run(context: CheckContext) {
      const word = "0123456789abcdef".repeat(4);
      const { id } = await context.over(Array.from({ length: 300 }, (_, at) => `echo ${at} ${word}`).join("; "));
      const lines = (await outputOf(context, id)).split("\n");
      const wrong = lines.findIndex((line, at) => line !== `${at} ${word}`);
      context.expect(
        lines.length === 300 && wrong < 0,
        "300 lines in their order",
        `there are ${lines.length}, and number ${wrong} is another`,
      );
    },
  },
  {
    name: "logs/limit-cuts-in-the-middle",
    why: "With whole lines alone, one long line would leave nothing.",
    async run(context: CheckContext) {
      const { id } = await context.over("echo one; echo twenty");
      const shown = textOf(await context.logs(id, { limitBytes: 6 }));
      context.expect(
        shown === "one\ntw" || shown === "one\ntwe",
        "the first line and the beginning of the second with a limit of 6 bytes",
        `it is ${JSON.stringify(shown)}`,
      );
    },
  },
  {
    name: "logs/follow-comes-as-it-is-written",
    why: "`kubectl logs -f` is for watching; at the end nobody needs it.",
    async run(context: CheckContext) {
      const { id } = await context.running("echo early; sleep 3600");
      await follow(context, id, "the line that was printed while the container runs on", (text) => text === "early");
    },
  },
  {
    name: "logs/follow-outlasts-silence",
    why: "A program that is quiet for a while has not ended.",
    async run(context: CheckContext) {
      const { id } = await context.running("echo before; sleep 4; echo after; sleep 3600");
      await follow(context, id, "the line that comes after 4 s of silence", (text) => text === "before\nafter");
    },
  },
  {
    name: "logs/follow-ends-with-the-instance",
    why: "The next instance has a log of its own; a follower that hangs shows neither.",
    async run(context: CheckContext) {
      const backoff = { initial_ms: 600_000, max_ms: 600_000 };
      const { id } = await context.running("echo crashing; sleep 1; exit 1", { restart_policy: "always", backoff });
      const shown = textOf(await context.logs(id, { follow: true }));
      context.expect(shown === "crashing", "what one instance has printed", `it is ${JSON.stringify(shown)}`);
    },
  },
  {
    name: "logs/follow-from-the-end",
    why: "`kubectl logs -f --tail 0` is for what comes, not for what was.",
    async run(context: CheckContext) {
      const { id } = await context.saying("past", "echo past; while true; do sleep 1; echo future; done");
      const shown = await follow(context, id, "a line that is printed while following", (text) => text !== "", 0);
      context.expect(shown === "future", "only what came while following", `it is ${JSON.stringify(shown)}`);
    },
  },
  {
    name: "logs/only-of-the-current-instance",
    why: "Who reads why it crashed now must not read why it did before.",
    async run(context: CheckContext) {
      const backoff = { initial_ms: 600_000, max_ms: 600_000 };
      const { id } = await context.create("echo once; exit 1", { restart_policy: "always", backoff });
      await context.until(id, "its second instance to have ended", (machine) => {
        const { state, restart_count } = mainOf(machine);
        return state === "waiting" && restart_count > 0;
      });
      const shown = await outputOf(context, id);
      context.expect(shown === "once", "the last instance's line alone", `it is ${JSON.stringify(shown)}`);
    },
  },
  {
    name: "logs/previous-of-none-is-not-found",
    why: "`kubectl logs -p` must say that there was no instance before.",
    async run(context: CheckContext) {
      const { id } = await context.running(FOREVER);
      await context.expectCode(
        context.logs(id, { previous: true }),
        "not_found",
        "reading the previous log of a container that never restarted",
      );
    },
  },
  {
    name: "logs/of-an-absent-machine-are-not-found",
    why: "An empty log would say that it was there and silent.",
    async run(context: CheckContext) {
      await context.expectCode(context.logs(context.id()), "not_found", "reading the log of a machine that never was");
    },
  },
];
