/** exec, attach, ports: what `kubectl exec`, `cp`, `attach` and `port-forward` ride on. */
import { once } from "node:events";
import type { Readable } from "node:stream";
import type { ProcessStreams, StreamOptions } from "../../provider.ts";
import type { Check } from "../check.ts";
import { FOREVER, Violation, type CheckContext } from "../context.ts";

const MEBIBYTE = 1024 * 1024;

export async function exec(
  context: CheckContext,
  id: string,
  script: string,
  rest: Partial<StreamOptions> = {},
): Promise<ProcessStreams> {
  const options = {
    signal: context.within(context.patienceMs),
    stdin: false,
    stdout: true,
    stderr: true,
    tty: false,
    ...rest,
  };
  const streams = await context.provider.exec?.(id, "main", ["sh", "-c", script], options);
  if (streams === undefined) throw new Violation("an exec method, since the capability is declared", "there is none");
  return streams;
}

export async function text(stream: Readable | null): Promise<string> {
  return stream === null ? "" : Buffer.concat((await stream.toArray()) as Buffer[]).toString();
}

export async function exitOf(context: CheckContext, streams: ProcessStreams): Promise<number> {
  const late = Promise.withResolvers<never>();
  const cancel = context.clock.after(context.patienceMs, () =>
    late.reject(new Violation("the session to end", "it did not")),
  );
  try {
    return (await Promise.race([streams.exit, late.promise])).exitCode;
  } finally {
    cancel();
  }
}

export const STREAM_CHECKS: readonly Check[] = [
  {
    name: "exec/exit-codes",
    needs: ["exec"],
    why: "Scripts and probes decide by them.",
    async run(context: CheckContext) {
      const { id } = await context.running(FOREVER);
      for (const [script, expected] of [
        ["exit 0", 0],
        ["exit 1", 1],
        ["kill -9 $$", 137],
      ] as const) {
        const streams = await exec(context, id, script);
        await Promise.all([text(streams.stdout), text(streams.stderr)]);
        const code = await exitOf(context, streams);
        context.expect(code === expected, `exit code ${expected} of \`${script}\``, `it is ${code}`);
      }
    },
  },
  {
    name: "exec/splits-stdout-and-stderr",
    needs: ["exec"],
    why: "`kubectl exec … > file` must not find errors in the file.",
    async run(context: CheckContext) {
      const { id } = await context.running(FOREVER);
      const streams = await exec(context, id, "echo out; echo err >&2");
      const [out, err] = await Promise.all([text(streams.stdout), text(streams.stderr)]);
      context.expect(
        out === "out\n" && err === "err\n",
        "out on stdout and err on stderr",
        `they are ${JSON.stringify(out)} and ${JSON.stringify(err)}`,
      );
    },
  },
  {
    name: "exec/half-closed-stdin",
    needs: ["exec"],
    why: "`kubectl cp` and every pipe end their input and then wait for the rest of the output.",
    async run(context: CheckContext) {
      const { id } = await context.running(FOREVER);
      const streams = await exec(context, id, "cat; echo done", { stdin: true });
      streams.stdin?.end("hello\n");
      const out = await text(streams.stdout);
      context.expect(
        out === "hello\ndone\n",
        "the command to see the end of its input and go on",
        `its output is ${JSON.stringify(out)}`,
      );
    },
  },
  {
    name: "exec/large-streams",
    needs: ["exec"],
    why: "`kubectl cp` of a big file must neither lose bytes nor fill the memory.",
    async run(context: CheckContext) {
      const { id } = await context.running(FOREVER);
      const streams = await exec(context, id, "cat", { stdin: true });
      const block = Buffer.alloc(MEBIBYTE / 16, "0123456789abcdef");
      const writing = (async () => {
        for (let sent = 0; sent < 10 * MEBIBYTE; sent += block.length) {
          if (streams.stdin?.write(block) === false) await once(streams.stdin as unknown as Readable, "drain");
        }
        streams.stdin?.end();
      })();
      writing.catch(() => {});
      let received = 0;
      for await (const chunk of (streams.stdout ?? []) as AsyncIterable<Buffer>) received += chunk.length;
      context.expect(received === 10 * MEBIBYTE, "10 MiB back from cat", `there are ${received} bytes`);
      await writing;
    },
  },
  {
    name: "exec/resize",
    needs: ["exec"],
    why: "Editors and shells draw by the terminal's size.",
    async run(context: CheckContext) {
      const { id } = await context.running(FOREVER);
      const streams = await exec(context, id, "read x; stty size", { stdin: true, tty: true });
      streams.resize(132, 43);
      // A terminal turns the end of a line into CR LF and echoes; the size is what counts.
      await context.clock.sleep(200, context.signal);
      streams.stdin?.write("\n");
      const out = await text(streams.stdout);
      context.expect(
        /\b43 132\b/.test(out),
        "43 rows and 132 columns",
        `the terminal says ${JSON.stringify(out.trim())}`,
      );
    },
  },
  {
    name: "exec/needs-a-running-container",
    needs: ["exec"],
    why: "A session into nothing must fail with a reason rather than hang.",
    async run(context: CheckContext) {
      const { id } = await context.over("exit 0");
      await context.expectCode(exec(context, id, "true"), "conflict", "an exec into a container that has ended");
    },
  },
  {
    name: "attach/carries-both-ways-and-ends",
    needs: ["attach"],
    why: "`kubectl attach -i` and `kubectl run -it` are this, and return the container's exit code.",
    async run(context: CheckContext) {
      const { id } = await context.running("", {
        containers: [context.container("read x; echo got $x; exit 4", { stdin: true })],
      });
      const options = {
        signal: context.within(context.patienceMs),
        stdin: true,
        stdout: true,
        stderr: false,
        tty: false,
      };
      const streams = await context.provider.attach?.(id, "main", options);
      context.expect(streams !== undefined, "an attach method, since the capability is declared", "there is none");
      streams.stdin?.write("it\n");
      const out = await text(streams.stdout);
      const code = await exitOf(context, streams);
      context.expect(
        out === "got it\n" && code === 4,
        'the output "got it" and exit code 4',
        `they are ${JSON.stringify(out)} and ${code}`,
      );
    },
  },
  {
    name: "ports/a-closed-port-is-refused",
    needs: ["port_forward"],
    why: "`kubectl port-forward` must say that nothing listens, not hang.",
    async run(context: CheckContext) {
      const { id } = await context.running(FOREVER);
      let opened;
      try {
        opened = await context.provider.portForward?.(id, 1, { signal: context.within(context.patienceMs) });
      } catch {
        return; // Which error is the provider's affair.
      }
      opened?.destroy();
      throw new Violation("a port where nothing listens to be refused", "it was opened");
    },
  },
  {
    name: "ports/carry-bytes-and-half-close",
    needs: ["port_forward"],
    why: "A client that ends its request waits for the rest of the answer.",
    skip: (context) => (context.echo === undefined ? "needs a container that echoes a port (option echo)" : undefined),
    async run(context: CheckContext) {
      const { command, port } = context.echo!;
      const { id } = await context.running("", {
        containers: [context.container("", { command, ports: [{ port, protocol: "tcp" }] })],
      });
      let answer = "";
      await context.untilTrue(`an echo on port ${port}`, async () => {
        try {
          const stream = await context.provider.portForward!(id, port, { signal: context.within(context.patienceMs) });
          stream.end("ping");
          answer = await text(stream);
          return true;
        } catch {
          return false; // Not listening yet.
        }
      });
      context.expect(
        answer === "ping",
        "what was sent to come back before the end",
        `${JSON.stringify(answer)} came back`,
      );
    },
  },
];
