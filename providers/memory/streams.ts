/** Commands beside a container's own, and clients of its streams. */
import { PassThrough } from "node:stream";
import { type Clock, onAbort, type ProcessStreams, type StreamOptions } from "../../src/provider/kit/index.ts";
import type { Instance } from "./instance.ts";
import { type Program, RunningProgram } from "./program.ts";
import { shellProgram } from "./shell.ts";

const notFound =
  (name = ""): Program =>
  async (io) => {
    await io.write("stderr", Buffer.from(`exec: ${name}: not found\n`));
    return 127;
  };

/** It is killed at `close`, when the signal aborts, and when the container ends. */
export function execIn(instance: Instance, command: string[], clock: Clock, options: StreamOptions): ProcessStreams {
  const stdin = new PassThrough();
  if (!options.stdin) stdin.end();
  const outputs = openOutputs(options);
  const exit = Promise.withResolvers<{ exitCode: number }>();
  const run = new RunningProgram(
    shellProgram(command) ?? notFound(command[0]),
    {
      argv: command,
      env: instance.env,
      clock,
      surroundings: instance.surroundings,
      streams: { stdin: stdin as AsyncIterable<Buffer>, write: outputs.write },
    },
    (exitCode) => {
      outputs.end();
      exit.resolve({ exitCode });
    },
  );
  const close = () => {
    run.kill();
    outputs.end();
  };
  const listening = onAbort(options.signal, close);
  void exit.promise.then(() => listening[Symbol.dispose]());
  void instance.exit.then(close);
  return {
    stdin: options.stdin ? stdin : null,
    stdout: outputs.stdout,
    stderr: outputs.stderr,
    resize: (columns, rows) => run.resize(columns, rows),
    exit: exit.promise,
    close,
  };
}

/** What the container writes from now on; it lives on after `close`. */
export function attachTo(instance: Instance, options: StreamOptions): ProcessStreams {
  const outputs = openOutputs(options);
  instance.taps.add(outputs.write);
  const close = () => {
    instance.taps.delete(outputs.write);
    outputs.end();
  };
  const listening = onAbort(options.signal, close);
  return {
    stdin: options.stdin ? instance.stdin : null,
    stdout: outputs.stdout,
    stderr: outputs.stderr,
    resize: (columns, rows) => instance.resize(columns, rows),
    exit: instance.exit.then((exitCode) => {
      listening[Symbol.dispose]();
      close();
      return { exitCode };
    }),
    close,
  };
}

/** Two pipes, or with a terminal one, that hold a writer back until its output is read. */
function openOutputs(options: StreamOptions) {
  const stdout = options.stdout ? new PassThrough() : null;
  const stderr = options.stderr && !options.tty ? new PassThrough() : null;
  return {
    stdout,
    stderr,
    write: (stream: "stdout" | "stderr", bytes: Buffer): Promise<void> => {
      const pipe = stream === "stdout" || options.tty ? stdout : stderr;
      if (pipe === null || pipe.destroyed || pipe.writableEnded) return Promise.resolve();
      return new Promise((resolve) => {
        if (pipe.write(bytes)) {
          resolve();
          return;
        }
        const done = () => {
          pipe.off("drain", done).off("close", done);
          resolve();
        };
        pipe.on("drain", done).on("close", done);
      });
    },
    end: () => {
      stdout?.end();
      stderr?.end();
    },
  };
}
