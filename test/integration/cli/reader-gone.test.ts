/** Output that nobody reads to its end, as behind `| head`. Real processes and pipes. */
import { execFile } from "node:child_process";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { MachineApiServer } from "../../../providers/http-vm/index.ts";
import { MemoryProvider } from "../../../providers/memory/index.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { systemClock } from "../../../src/util/clock.ts";

const PROGRAM = join(import.meta.dirname, "../../../src/cli/main.ts");
/** 128 and the number of SIGPIPE. */
const BY_SIGPIPE = 141;

let memory: MemoryProvider;
let server: MachineApiServer;
let url: string;
beforeEach(async () => {
  memory = new MemoryProvider({ clock: systemClock });
  server = new MachineApiServer({ provider: memory, logger: silentLogger, auth: {} });
  ({ url } = await server.listen({ host: "127.0.0.1", port: 0 }));
});
afterEach(async () => {
  await server.close({ graceMs: 100 });
  await memory.close();
});

/** What `reader` leaves unread breaks the pipe. @param output where it is written to in place of the pipe */
function piped(
  words: readonly string[],
  reader: string,
  output?: string,
): Promise<{ status: number; read: string; errors: string }> {
  const script = `"$@" ${output === undefined ? "" : `>${output}`} | ${reader}; echo "status \${PIPESTATUS[0]}"`;
  return new Promise((resolve, reject) => {
    execFile("bash", ["-c", script, "bash", process.execPath, PROGRAM, ...words], (thrown, stdout, stderr) => {
      if (thrown !== null) return reject(thrown);
      const [, read, status] = /^([\s\S]*)status (\d+)\n$/.exec(stdout)!;
      resolve({ status: Number(status), read: read!, errors: stderr });
    });
  });
}

test("a list that nobody reads ends as by SIGPIPE, and says nothing", async () => {
  expect(await piped(["conformance", "--list"], "true")).toEqual({ status: BY_SIGPIPE, read: "", errors: "" });
});

test("checks whose results are read no more end as by SIGPIPE, without a stack", async () => {
  const { status, read, errors } = await piped(["conformance", url], "head -n 1");
  expect(read).toMatch(/^(ok {2}|skip) {2}\S+/);
  expect(errors).not.toMatch(/^ {4}at |EPIPE|SIGTERM/m);
  expect(status).toBe(BY_SIGPIPE);
});

test("checks whose results are read no more leave no machine behind", async () => {
  await piped(["conformance", url], "head -n 1");
  expect(memory.machines.filter(({ state }) => state !== "deleted" && state !== "deleting")).toEqual([]);
});

test("checks that are traced leave no machine behind when both outputs lose their reader", async () => {
  const { status, errors } = await piped(["conformance", url, "--trace"], "head -n 3", "&1 2>&1");
  expect({ status, errors }).toEqual({ status: BY_SIGPIPE, errors: "" });
  expect(memory.machines.filter(({ state }) => state !== "deleted" && state !== "deleting")).toEqual([]);
});

test("checks whose results find no room end with 1, say so, and leave no machine behind", async () => {
  const { status, errors } = await piped(["conformance", url], "cat >/dev/null", "/dev/full");
  expect(errors).toMatch(/^vmlet: its output cannot be written: ENOSPC/m);
  expect(errors).not.toMatch(/^ {4}at /m);
  expect(status).toBe(1);
  expect(memory.machines.filter(({ state }) => state !== "deleted" && state !== "deleting")).toEqual([]);
});

test("a command that is done before its reader has gone keeps its own status", async () => {
  expect(await piped(["--version"], "cat")).toMatchObject({ status: 0, errors: "" });
});
