/**
 * What the log of a containerd of our own tells. containerd writes a line as soon as it hears that a container has
 * ended, has the shim forget it then, and writes down how it ended last (internal/cri/server/events.go): when it is
 * killed in between, its log is all there is. It is written as JSON, so that no name in it looks like a line.
 */
import type { TaskExit } from "./shims.ts";

const ENDED = "received container exit event ";
/** containerd's own word for an end that it has not seen, too. */
const UNKNOWN_EXIT = 255;

interface LogLine {
  msg?: unknown;
  error?: unknown;
}

/** How containers have ended, by their ids: what containerd itself may not know any more. */
export function loggedExits(log: string): Map<string, TaskExit> {
  const exits = new Map<string, TaskExit>();
  for (const { msg } of lines(log)) {
    if (typeof msg !== "string" || !msg.startsWith(ENDED)) continue;
    // Protocol Buffers' text leaves out what is zero.
    const id = /\bcontainer_id:"([0-9a-f]+)"/.exec(msg)?.[1];
    const number = (field: RegExp) => Number(field.exec(msg)?.[1] ?? 0);
    const exitCode = number(/\bexit_status:(\d+)/);
    const finishedAt = number(/\bseconds:(\d+)/) * 1000 + Math.floor(number(/\bnanos:(\d+)/) / 1e6);
    if (id !== undefined && exitCode !== UNKNOWN_EXIT) exits.set(id, { exitCode, finishedAt });
  }
  return exits;
}

/** For people. @returns at most so many characters of its end */
export function lastWords(log: string, chars: number): string {
  const told = log
    .slice(-10 * chars)
    .split("\n")
    .map((text) => {
      const { msg, error } = parse(text) ?? { msg: text };
      return [msg, error].filter((each) => typeof each === "string").join(": ");
    });
  return told.join("\n").trim().slice(-chars);
}

function lines(log: string): LogLine[] {
  return log.split("\n").flatMap((text) => parse(text) ?? []);
}

/** Undefined for what is no line of the log's own: a crash tells of itself, and the last line may be half written. */
function parse(text: string): LogLine | undefined {
  try {
    const line: unknown = JSON.parse(text);
    return typeof line === "object" && line !== null ? line : undefined;
  } catch {
    return undefined;
  }
}
