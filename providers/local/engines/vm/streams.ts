/** Commands of this backend's own in a guest: exec and forwarded ports, as streams. They end with the backend. */
import { PassThrough, Writable } from "node:stream";
import { onAbort, type ProcessStreams, ProviderError, type StreamOptions } from "../../../../src/provider/kit/index.ts";
import { KILLED_EXIT } from "../../engine.ts";
import type { GuestCommandPlace } from "../../engine.ts";
import { GuestSession } from "../../shim/guest-session.ts";

export interface GuestStreams extends ProcessStreams {
  /** Whether a connection stands; of no meaning for a command. */
  readonly started: Promise<boolean>;
}

/**
 * Connects to a command that is about to be started. `exit` resolves once its output is over too, after `close()` as of
 * a command that was killed. It rejects with ProviderError `unavailable` when the session breaks off.
 */
export function openStreams(place: GuestCommandPlace, options: StreamOptions): GuestStreams {
  const stdout = options.stdout ? new PassThrough() : null;
  const stderr = options.stderr && !options.tty ? new PassThrough() : null;
  const targets = { stdout, stderr };
  const { promise: exit, resolve, reject } = Promise.withResolvers<{ exitCode: number }>();
  const { promise: started, resolve: start } = Promise.withResolvers<boolean>();
  exit.catch(() => undefined);
  let exitCode = 0;
  let isClosing = false;
  /** Those that are full: until all are drained, the guest waits. */
  const full = new Set<PassThrough>();
  const session = new GuestSession(place, {
    started: () => start(true),
    output(stream, chunk) {
      const target = targets[stream];
      if (target === null || target.destroyed || target.write(chunk) || full.has(target)) return;
      full.add(target);
      session.pause();
      const resume = () => {
        target.off("drain", resume);
        target.off("close", resume);
        full.delete(target);
        if (full.size === 0) session.resume();
      };
      target.on("drain", resume);
      target.on("close", resume);
    },
    streamEnd: (stream) => targets[stream]?.end(),
    exited: (code) => (exitCode = code),
    drained: () => stdin?.emit("sent"),
    closed(error) {
      start(false);
      if (error === undefined) {
        // What is still written goes nowhere, as with any command that has closed its input.
        stdin?.emit("sent");
        resolve({ exitCode });
        return;
      }
      stdin?.destroy();
      if (isClosing) resolve({ exitCode: KILLED_EXIT });
      else reject(new ProviderError("unavailable", error.message, { cause: error }));
    },
  });
  const close = () => {
    isClosing = true;
    session.close();
  };
  const stdin = options.stdin ? inputOf(session) : null;
  stdin?.on("error", () => undefined);
  const aborted = onAbort(options.signal, close);
  void exit.finally(() => aborted[Symbol.dispose]()).catch(() => undefined);
  return {
    stdin,
    stdout,
    stderr,
    exit,
    started,
    resize: (columns, rows) => session.resize(columns, rows),
    close() {
      stdout?.destroy();
      stderr?.destroy();
      close();
    },
  };
}

function inputOf(session: GuestSession): Writable {
  return new Writable({
    write(this: Writable, chunk: Buffer, _encoding, callback) {
      if (session.write(chunk)) callback();
      else this.once("sent", () => callback());
    },
    final(callback) {
      session.end();
      callback();
    },
  });
}
