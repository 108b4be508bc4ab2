/**
 * One instance of a container, from its start to its end. Its folder is the current one, its input a pipe on which the
 * backend sends signals. It needs no backend: what it has seen, it writes down.
 */
import { spawn } from "node:child_process";
import { openSync, writeSync } from "node:fs";
import { constants } from "node:os";
import { createInterface } from "node:readline";
import type { Readable } from "node:stream";
import { now, readFile, writeFile } from "./files.ts";
import type { Record } from "./machine.ts";

/** Longer lines come as several records, all but the last marked P. */
const LINE_BYTES = 16 * 1024;

export interface End {
  exit_code: number;
  reason: string;
  message?: string;
  at: string;
}

const main = (readFile("../record.json") as Record).spec!.containers[0]!;
const log = openSync("log", "a", 0o600);
writeFile("started", now());
const child = spawn("setpriv", ["--pdeathsig", "KILL", "--", ...main.command, ...(main.args ?? [])], {
  cwd: main.working_dir ?? "/",
  env: { PATH: process.env["PATH"] ?? "/usr/bin:/bin", HOME: "/", ...Object.fromEntries((main.env ?? []).map((e) => [e.name, e.value])) },
  stdio: ["ignore", "pipe", "pipe"],
  detached: true, // a session of its own, so that all of it can be stopped
});
copyLines(child.stdout, "stdout");
copyLines(child.stderr, "stderr");
const kill = (signal: number): void => {
  try {
    if (child.pid !== undefined) process.kill(-child.pid, signal);
  } catch {
    // It has just ended by itself.
  }
};
createInterface({ input: process.stdin }).on("line", (line) => kill(Number(line)));
child.on("error", ({ message }) => {
  writeFile("exit", { exit_code: 126, reason: "StartError", message, at: now() } satisfies End);
  process.exit();
});
child.on("exit", (code, signal) => {
  kill(constants.signals.SIGKILL); // what it has left behind
  const exit_code = signal === null ? code! : 128 + constants.signals[signal];
  const end: End = { exit_code, reason: exit_code === 0 ? "Completed" : "Error", at: now() };
  const finish = (): never => {
    writeFile("exit", end);
    process.exit();
  };
  child.on("close", finish);
  setTimeout(finish, 5000); // what has left its session holds the pipes
});

/** From the pipe to the log, in the format of container runtimes. Each record is one write, so two streams can share it. */
function copyLines(source: Readable, stream: string): void {
  let rest = Buffer.alloc(0);
  const record = (content: Buffer, mark: string): void => {
    // Milliseconds are what Node has; the form has nine decimals.
    const head = `${now().slice(0, -1)}000000Z ${stream} ${mark} `;
    writeSync(log, Buffer.concat([Buffer.from(head), content, Buffer.from("\n")]));
  };
  source.on("data", (data: Buffer) => {
    rest = Buffer.concat([rest, data]);
    for (;;) {
      const at = rest.subarray(0, LINE_BYTES + 1).indexOf(10);
      if (at < 0 && rest.length <= LINE_BYTES) return;
      record(rest.subarray(0, at < 0 ? LINE_BYTES : at), at < 0 ? "P" : "F");
      rest = rest.subarray(at < 0 ? LINE_BYTES : at + 1);
    }
  });
  source.on("end", () => rest.length > 0 && record(rest, "P"));
}
