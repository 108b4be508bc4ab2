/** What a command of exec and a client of attach find, and how their sessions end. */
import type { Readable } from "node:stream";
import type { ProcessStreams } from "../../provider.ts";
import type { Check } from "../check.ts";
import { FOREVER, mainOf, Violation, type CheckContext } from "../context.ts";
import { expectPathAndHome } from "./processes.ts";
import { exec, exitOf, text } from "./streams.ts";

/** What a script prints that ends by itself. */
async function printed(context: CheckContext, id: string, script: string): Promise<string> {
  const streams = await exec(context, id, script);
  const [out] = await Promise.all([text(streams.stdout), text(streams.stderr)]);
  await exitOf(context, streams);
  return out;
}

/** What comes first. @throws Violation when nothing does in time */
async function firstOf(context: CheckContext, stream: Readable | null, what: string): Promise<string> {
  const late = Promise.withResolvers<never>();
  const cancel = context.clock.after(context.patienceMs, () => late.reject(new Violation(what, "nothing came")));
  try {
    const first = await Promise.race([stream?.[Symbol.asyncIterator]().next(), late.promise]);
    return first === undefined || first.done === true ? "" : (first.value as Buffer).toString();
  } finally {
    cancel();
  }
}

const attach = async (context: CheckContext, id: string, container = "main"): Promise<ProcessStreams> => {
  const signal = context.within(context.patienceMs);
  const streams = await context.provider.attach?.(id, container, {
    signal,
    stdin: true,
    stdout: true,
    stderr: false,
    tty: false,
  });
  if (streams === undefined) throw new Violation("an attach method, since the capability is declared", "there is none");
  return streams;
};

const EXEC_RULES: readonly Omit<Check, "needs">[] = [
  {
    name: "exec/has-the-container's-environment",
    why: "A command that looks into a container must find what its program finds.",
    async run(context: CheckContext) {
      const { id } = await context.running("", {
        containers: [context.container(FOREVER, { env: [{ name: "SALUTE", value: "hello you" }] })],
      });
      const out = await printed(context, id, 'echo "$SALUTE"');
      context.expect(out === "hello you\n", "the container's variable", `the command sees ${JSON.stringify(out)}`);
    },
  },
  {
    name: "exec/has-PATH-and-HOME",
    why: "A shell that does not find `ls` is of no use.",
    async run(context: CheckContext) {
      const { id } = await context.running(FOREVER);
      expectPathAndHome(context, await printed(context, id, "env"));
    },
  },
  {
    name: "exec/starts-in-the-working-dir",
    why: "`kubectl cp` and every relative path go from there.",
    async run(context: CheckContext) {
      const { id } = await context.running("", {
        containers: [context.container(FOREVER, { working_dir: "/usr" })],
      });
      const out = await printed(context, id, "pwd");
      context.expect(out === "/usr\n", "the container's working_dir /usr", `it is ${JSON.stringify(out)}`);
    },
  },
  {
    name: "exec/arguments-are-exact",
    why: "No shell is added: what has blanks or quotes is one argument all the same.",
    async run(context: CheckContext) {
      const { id } = await context.running(FOREVER);
      const streams = await context.provider.exec?.(id, "main", ["printf", "%s,", "a b", "", "$HOME", "é\"'\n;"], {
        signal: context.within(context.patienceMs),
        stdin: false,
        stdout: true,
        stderr: true,
        tty: false,
      });
      const out = await text(streams?.stdout ?? null);
      context.expect(out === "a b,,$HOME,é\"'\n;,", "each argument as it was given", `they are ${JSON.stringify(out)}`);
    },
  },
  {
    name: "exec/input-that-nobody-asked-for-is-empty",
    why: "A command that reads would wait for ever.",
    async run(context: CheckContext) {
      const { id } = await context.running(FOREVER);
      const out = await printed(context, id, "cat; echo no-input");
      context.expect(
        out === "no-input\n",
        "the input to be at its end without stdin",
        `it printed ${JSON.stringify(out)}`,
      );
    },
  },
  {
    name: "exec/output-comes-as-it-is-written",
    why: "A shell whose prompt comes at its end cannot be used.",
    async run(context: CheckContext) {
      const { id } = await context.running(FOREVER);
      const streams = await exec(context, id, "echo prompt; sleep 3600");
      streams.exit.catch(() => {});
      const out = await firstOf(context, streams.stdout, "the first line of a command that runs on");
      streams.close();
      context.expect(out === "prompt\n", 'the line "prompt"', `it is ${JSON.stringify(out)}`);
    },
  },
  {
    name: "exec/closing-kills",
    why: "After Ctrl-C nobody is there who could end it; such commands would pile up.",
    async run(context: CheckContext) {
      const { id } = await context.running(FOREVER);
      const file = `/tmp/${id}`;
      const beats = await exec(context, id, `while true; do date +%s >> ${file}; sleep 0.2; done`);
      beats.exit.catch(() => {});
      const beat = () => printed(context, id, `cat ${file}`);
      await context.untilTrue("the command's first beat", async () => /^\d+\n/.test(await beat()));
      beats.close();
      // A kill takes its time; after that nothing may beat any more.
      await context.untilTrue("a command whose client closed to end", async () => {
        const before = await beat();
        await context.clock.sleep(4200, context.signal);
        return (await beat()) === before;
      });
      await printed(context, id, `rm -f ${file}`);
    },
  },
  {
    name: "exec/two-at-once",
    why: "Two people look into one pod, and a probe is there as well.",
    async run(context: CheckContext) {
      const { id } = await context.running(FOREVER);
      const first = await exec(context, id, "read x; echo first $x", { stdin: true });
      const second = await printed(context, id, "echo second");
      first.stdin?.write("of all\n");
      const out = await text(first.stdout);
      context.expect(
        out === "first of all\n" && second === "second\n",
        "two sessions with what belongs to each",
        `they printed ${JSON.stringify(out)} and ${JSON.stringify(second)}`,
      );
    },
  },
  {
    name: "exec/only-the-streams-asked-for",
    why: "What nobody reads would fill up, and hold the command.",
    async run(context: CheckContext) {
      const { id } = await context.running(FOREVER);
      const streams = await exec(context, id, "echo quiet >&2; echo loud", { stderr: false });
      const out = await text(streams.stdout);
      const code = await exitOf(context, streams);
      context.expect(
        streams.stderr === null && out === "loud\n" && code === 0,
        "stdout alone, and the command to end with 0",
        `stdout is ${JSON.stringify(out)}, the exit code ${code}`,
      );
    },
  },
  {
    name: "exec/a-command-that-is-not-there",
    why: "`kubectl exec` must fail when its command was never run.",
    async run(context: CheckContext) {
      const { id } = await context.running(FOREVER);
      const options = {
        signal: context.within(context.patienceMs),
        stdin: false,
        stdout: true,
        stderr: true,
        tty: false,
      };
      let code: number;
      try {
        const streams = await context.provider.exec!(id, "main", ["/nonexistent/conformance"], options);
        await Promise.all([text(streams.stdout), text(streams.stderr)]);
        code = await exitOf(context, streams);
      } catch (thrown) {
        if (thrown instanceof Violation) throw thrown;
        await context.expectCode(Promise.reject(thrown), "invalid", "a command that does not exist");
        return;
      }
      context.expect(
        code === 126 || code === 127,
        "`invalid`, or the exit code 126 or 127",
        `the command is said to have ended with ${code}`,
      );
    },
  },
  {
    name: "exec/an-unknown-container-is-not-found",
    why: "A typing error must not run a command somewhere else.",
    async run(context: CheckContext) {
      const { id } = await context.running(FOREVER);
      const options = {
        signal: context.within(context.patienceMs),
        stdin: false,
        stdout: true,
        stderr: true,
        tty: false,
      };
      await context.expectCode(
        context.provider.exec!(id, "nobody", ["true"], options),
        "not_found",
        "an exec into a container that the machine has not",
      );
    },
  },
  {
    name: "exec/an-absent-machine-is-not-found",
    why: "There is nothing to wait for.",
    async run(context: CheckContext) {
      await context.expectCode(
        exec(context, context.id(), "true"),
        "not_found",
        "an exec into a machine that never was",
      );
    },
  },
  {
    name: "exec/ends-with-the-machine",
    why: "A session into what was stopped would hang until somebody looks.",
    async run(context: CheckContext) {
      const { id } = await context.running(FOREVER);
      const streams = await exec(context, id, "sleep 3599");
      const ended = exitOf(context, streams).catch((thrown: unknown) => {
        if (thrown instanceof Violation) throw thrown; // Whatever else it ends with, it ends.
      });
      streams.stdout?.on("error", () => {}).resume();
      streams.stderr?.on("error", () => {}).resume();
      await context.stop(id, 0);
      await ended;
    },
  },
];

export const SESSION_CHECKS: readonly Check[] = [
  ...EXEC_RULES.map((rule): Check => ({ ...rule, needs: ["exec"] })),
  {
    name: "attach/shows-only-what-comes",
    needs: ["attach"],
    why: "What was printed before is in the log; `kubectl attach` is for what happens now.",
    async run(context: CheckContext) {
      const { id } = await context.saying("past", "", {
        containers: [context.container("echo past; read x; echo now", { stdin: true })],
      });
      const streams = await attach(context, id);
      streams.stdin?.write("go\n");
      const out = await text(streams.stdout);
      context.expect(out === "now\n", "what was printed after attaching", `it is ${JSON.stringify(out)}`);
    },
  },
  {
    name: "attach/closing-leaves-the-process-alone",
    needs: ["attach"],
    why: "Looking at a program must not end it.",
    async run(context: CheckContext) {
      const { id } = await context.running("", {
        containers: [context.container(FOREVER, { stdin: true })],
        labels: context.labelsOf("attached"),
      });
      const streams = await attach(context, id);
      streams.exit.catch(() => {});
      streams.stdout?.on("error", () => {});
      streams.close();
      await context.clock.sleep(1000, context.signal);
      const { state } = mainOf(await context.get(id));
      context.expect(state === "running", "the process to run on when its client closed", `it is ${state}`);
    },
  },
  {
    name: "attach/needs-a-running-container",
    needs: ["attach"],
    why: "A session with nothing must fail with a reason rather than hang.",
    async run(context: CheckContext) {
      const { id } = await context.over("exit 0");
      await context.expectCode(attach(context, id), "conflict", "attaching to a container that has ended");
    },
  },
  {
    name: "attach/an-unknown-container-is-not-found",
    needs: ["attach"],
    why: "A typing error must not show another container's output.",
    async run(context: CheckContext) {
      const { id } = await context.running(FOREVER);
      await context.expectCode(
        attach(context, id, "nobody"),
        "not_found",
        "attaching to a container that is not there",
      );
    },
  },
  {
    name: "ports/an-absent-machine-is-not-found",
    needs: ["port_forward"],
    why: "A tunnel to nowhere looks like a server that is silent.",
    async run(context: CheckContext) {
      const signal = context.within(context.patienceMs);
      await context.expectCode(
        context.provider.portForward!(context.id(), 80, { signal }),
        "not_found",
        "a port of a machine that never was",
      );
    },
  },
];
