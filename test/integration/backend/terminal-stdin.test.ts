/** On real terminals: a command that does not read must not make this host keep all that is written to it. */
import { chmodSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { constants, tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import { attachShim, installShim, PTY_MODULE, startShim } from "../../../providers/local/shim/client.ts";
import { spawnStreams } from "../../../providers/local/shim/spawn.ts";
import type { ProcessStreams } from "../../../src/provider/provider.ts";
import { settled } from "../../e2e/harness/wait.ts";

const CHUNK = Buffer.alloc(64 * 1024, "x");
const CHUNKS = 128;
const TOTAL = CHUNK.length * CHUNKS;

let dir: string;
let stop: AbortController;

beforeEach(() => {
  stop = new AbortController();
  dir = mkdtempSync(join(tmpdir(), "vmlet-tty-"));
  // Reads nothing until there is a file, then everything; tells how much it was.
  writeFileSync(
    join(dir, "slow"),
    `#!/bin/sh
stty raw -echo
# Again and again: who attaches sees only what comes from then on.
while [ -d ${dir} -a ! -e ${dir}/go ]; do echo reads-nothing; sleep 0.01; done
[ -d ${dir} ] || exit 1
echo "read $(head -c ${TOTAL} | wc -c)"
`,
  );
  chmodSync(join(dir, "slow"), 0o755);
});

afterEach(() => {
  stop.abort(new Error("the test is over"));
  // A shim may still be writing its last files.
  rmSync(dir, { recursive: true, force: true, maxRetries: 20, retryDelay: 20 });
});

const env = { PATH: process.env["PATH"] ?? "", TERM: "xterm" };
const options = () => ({ stdin: true, stdout: true, stderr: false, tty: true, signal: stop.signal });

async function exec(): Promise<ProcessStreams> {
  return await spawnStreams({ argv: [join(dir, "slow")], env, cwd: "/" }, options());
}

async function attach(): Promise<ProcessStreams> {
  const socket = join(dir, "socket");
  const launch = {
    ...{ argv: [join(dir, "slow")], env, cwd: "/" },
    ...{ tty: true, stdin: true, stdinOnce: false, socket },
    ...{ logMaxBytes: 1 << 20, logMaxFiles: 2, ptyModule: PTY_MODULE },
  };
  await startShim(installShim(dir), dir, launch, join(dir, "launch.json"));
  return await attachShim(socket, options());
}

describe.each([
  ["an exec", exec],
  ["an attach", attach],
])("stdin of %s on a terminal", (_what, begin) => {
  test("is taken no faster than the command reads it, and then arrives whole", async () => {
    const streams = await begin();
    let told = "";
    streams.stdout!.on("data", (data: Buffer) => (told += data.toString()));
    await vi.waitFor(() => expect(told).toContain("reads-nothing"), 10_000);
    let taken = 0;
    for (let index = 0; index < CHUNKS; index++) streams.stdin!.write(CHUNK, () => (taken += CHUNK.length));
    // What lies in the buffers between here and the terminal's own; the command was given no time to read.
    await settled(() => taken);
    expect(taken).toBeLessThan(TOTAL / 2);
    writeFileSync(join(dir, "go"), "");
    await vi.waitFor(() => expect(told).toContain(`read ${TOTAL}`), 20_000);
    expect(taken).toBe(TOTAL);
  });

  test("does not outlive the command: what was not read is dropped", async () => {
    const streams = await begin();
    streams.stdout!.on("error", () => {}).on("data", () => {});
    for (let index = 0; index < CHUNKS; index++) streams.stdin!.write(CHUNK);
    const closed = new Promise((resolve) => streams.stdin!.once("close", resolve));
    streams.stdin!.end();
    streams.close();
    await expect(Promise.all([streams.exit.catch(() => undefined), closed])).resolves.toBeDefined();
  });
});

test("a session on a terminal that is closed as soon as it began ends its command", async () => {
  for (let count = 0; count < 20; count++) {
    const streams = await spawnStreams({ argv: ["sleep", "3600"], env, cwd: "/" }, options());
    streams.close();
    await expect(streams.exit).resolves.toEqual({ exitCode: 128 + constants.signals.SIGKILL });
  }
});
