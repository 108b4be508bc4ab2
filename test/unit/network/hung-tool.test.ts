/** The host's own programs that come to no end: what all machines share waits for them. */
import { chmodSync, existsSync, mkdtempSync, readFileSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { delimiter, join } from "node:path";
import { afterEach, beforeEach, expect, onTestFinished, test, vi } from "vitest";
import { run } from "../../../providers/local/host/command.ts";
import { ip } from "../../../providers/local/network/links.ts";

beforeEach(() => void vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout"] }));
afterEach(() => {
  vi.useRealTimers();
  vi.unstubAllEnvs();
});

/** A program of this name that is found before the host's, and comes to no end. Fulfilled with its process id. */
function hangs(name: string, script = 'echo $$ >"$0.pid"; exec sleep 60'): () => Promise<number> {
  const dir = mkdtempSync(join(tmpdir(), "vmlet-hung-"));
  const path = join(dir, name);
  writeFileSync(path, `#!/bin/sh\n${script}\n`);
  chmodSync(path, 0o755);
  vi.stubEnv("PATH", [dir, process.env["PATH"]].join(delimiter));
  const pidFile = `${path}.pid`;
  return async () => {
    await vi.waitUntil(() => existsSync(pidFile) && readFileSync(pidFile, "utf8").endsWith("\n"), { timeout: 10_000 });
    return Number(readFileSync(pidFile, "utf8"));
  };
}

test("a program of the network that does not end within a minute is killed, and its caller told", async () => {
  const begun = hangs("ip");
  const made = ip(["link add a type bridge"]);
  const told = expect(made).rejects.toThrow("has not ended within 60 s");
  const pid = await begun();
  await vi.advanceTimersByTimeAsync(60_000);
  await told;
  expect(() => process.kill(pid, 0)).toThrow("ESRCH");
});

test("a program that was killed is not waited for because another holds its output open", async () => {
  const begun = hangs("forks", 'sleep 60 & echo $! >"$0.pid"; exec sleep 60');
  const stop = new AbortController();
  const told = expect(run("forks", [], { signal: stop.signal })).rejects.toThrow("not wanted");
  const pid = await begun();
  onTestFinished(() => void process.kill(pid, "SIGKILL"));
  stop.abort(new Error("not wanted"));
  await vi.advanceTimersByTimeAsync(2_000);
  await told;
});
