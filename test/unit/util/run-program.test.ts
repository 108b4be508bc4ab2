import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { runProgram } from "../../../src/util/run-program.ts";

let folder: string;
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), "run-program-"));
});
afterEach(() => rmSync(folder, { recursive: true }));

const shell = (script: string, limits: { timeoutMs?: number; signal?: AbortSignal; maxOutputBytes?: number } = {}) =>
  runProgram(
    { file: "/bin/sh", args: ["-c", script], addedEnv: { ADDED: "added" } },
    { input: "input", signal: new AbortController().signal, timeoutMs: 10_000, maxOutputBytes: 1000, ...limits },
  );

/** Whether a process runs; one that has ended and was not waited for does not. */
function isRunning(pid: number): boolean {
  try {
    return !/^State:\s*Z/m.test(readFileSync(`/proc/${pid}/status`, "utf8"));
  } catch {
    return false;
  }
}

describe("a program", () => {
  test("gets its input, what this process has in its environment and what is added, and its output is returned", async () => {
    expect(await shell('cat; printf "/$ADDED/$HOME"')).toBe(`input/added/${process.env["HOME"]}`);
  });

  test("that writes too much is ended", () => expect(shell("yes")).rejects.toThrow("it wrote more than 1000 bytes"));

  test("that hangs is killed with all that it started", async () => {
    const pidFile = join(folder, "pid");
    const running = shell(`sleep 1000 & echo $! > ${pidFile}; echo waiting >&2; wait`, { timeoutMs: 500 });
    await expect(running).rejects.toThrow("it was killed because it took longer than 0.5 s: waiting");
    await expect.poll(() => isRunning(Number(readFileSync(pidFile, "utf8")))).toBe(false);
  });

  test("is not waited for when it leaves behind a process that holds its output", async () => {
    await expect(shell("sleep 1000 & exit 0", { timeoutMs: 300 })).rejects.toThrow("it was killed");
  });

  test("is not started when the signal has aborted already", () =>
    expect(async () => shell("true", { signal: AbortSignal.abort(new Error("stopped")) })).rejects.toThrow("stopped"));
});
