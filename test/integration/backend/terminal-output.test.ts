/** On real terminals: what a command wrote last is not lost when its reader is slower than its end. */
import { existsSync, mkdtempSync, readFileSync, rmSync, statSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { text } from "node:stream/consumers";
import { afterEach, beforeEach, expect, test } from "vitest";
import { attachShim, installShim, PTY_MODULE, startShim } from "../../../providers/local/shim/client.ts";
import { spawnStreams } from "../../../providers/local/shim/spawn.ts";
import { passTime } from "../../e2e/harness/wait.ts";

let dir: string;
let stop: AbortController;

beforeEach(() => {
  stop = new AbortController();
  dir = mkdtempSync(join(tmpdir(), "vmlet-tty-"));
});

afterEach(() => {
  stop.abort(new Error("the test is over"));
  // A shim may still be writing its last files.
  rmSync(dir, { recursive: true, force: true, maxRetries: 20, retryDelay: 20 });
});

const env = { PATH: process.env["PATH"] ?? "", TERM: "xterm" };
const options = () => ({ stdin: false, stdout: true, stderr: false, tty: true, signal: stop.signal });
const command = (lines: number) => ["sh", "-c", `seq 1 ${lines}; : > ${dir}/done; exit 3`];
const lastLine = (output: string) => output.trimEnd().split("\r\n").at(-1);

/** node-pty gives up what was not read 200 ms after the end: twice that. */
async function longOver(): Promise<void> {
  await expect.poll(() => existsSync(join(dir, "done")), { timeout: 20_000 }).toBe(true);
  await passTime(400, "the timer is node-pty's own");
}

// More than is read ahead, less than with what the terminal itself holds: the command ends, its output waits.
test.each([21_000, 22_000, 23_000])(
  "all %i lines of a command arrive, although they are read only long after its end",
  async (lines) => {
    const streams = await spawnStreams({ argv: command(lines), env, cwd: "/" }, options());
    await longOver();
    expect(lastLine(await text(streams.stdout!))).toBe(`${lines}`);
    expect(await streams.exit).toEqual({ exitCode: 3 });
  },
);

test("a session whose output nobody wants ends with its command", async () => {
  const streams = await spawnStreams({ argv: command(22_000), env, cwd: "/" }, options());
  await longOver();
  streams.stdout!.destroy();
  expect(await streams.exit).toEqual({ exitCode: 3 });
});

test("a command whose output is held back is seen to be killed, and what it had written comes into the log", async () => {
  const socket = join(dir, "socket");
  const launch = {
    ...{ argv: ["yes"], env, cwd: "/", tty: true, stdin: false, stdinOnce: false, socket },
    ...{ logMaxBytes: 64 << 20, logMaxFiles: 2, ptyModule: PTY_MODULE },
  };
  await startShim(installShim(dir), dir, launch, join(dir, "launch.json"));
  // Does not read.
  await attachShim(socket, options());
  const logged = () => statSync(join(dir, "log.0")).size;
  let before = -1;
  await expect
    .poll(
      () => {
        const same = before === logged();
        before = logged();
        return same;
      },
      { interval: 300, timeout: 20_000 },
    )
    .toBe(true);
  const { pid } = JSON.parse(readFileSync(join(dir, "shim-started.json"), "utf8")) as { pid: number };
  process.kill(-pid, "SIGKILL");
  await expect.poll(() => existsSync(join(dir, "shim-exit.json")), { timeout: 20_000 }).toBe(true);
  expect(JSON.parse(readFileSync(join(dir, "shim-exit.json"), "utf8"))).toMatchObject({ exit: { exitCode: 137 } });
  expect(logged()).toBeGreaterThan(before);
});
