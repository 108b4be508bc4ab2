import { spawn } from "node:child_process";
import { existsSync } from "node:fs";
import { createInterface } from "node:readline";
import { join } from "node:path";
import { expect, test } from "vitest";
import { createSandbox, markedProcesses } from "./processes.ts";
import { must, waitFor } from "./wait.ts";

test("closing a sandbox ends its processes, what they left behind, and the folder", async () => {
  const sandbox = await createSandbox("selftest");
  // The outer shell ends at once; the inner one is nobody's child any more, in a session of its own.
  const parent = sandbox.spawn("parent", "sh", ["-c", "setsid sh -c 'sleep 600; true' & exit 0"]);
  await parent.exited;
  await waitFor({ what: "the detached process" }, () => must(markedProcesses(sandbox.dir).length > 0, "none"));
  await sandbox.close();
  expect(markedProcesses(sandbox.dir)).toEqual([]);
  expect(existsSync(sandbox.dir)).toBe(false);
});

test("a test process that is killed takes its children with it", async () => {
  const script = `
    import { createSandbox } from ${JSON.stringify(join(import.meta.dirname, "processes.ts"))};
    const sandbox = await createSandbox("selftest");
    sandbox.spawn("child", "sleep", ["600"]);
    console.log(sandbox.dir);
    setInterval(() => {}, 1000);`;
  const victim = spawn(process.execPath, ["--input-type=module", "-e", script], {
    stdio: ["ignore", "pipe", "inherit"],
  });
  const [dir] = await new Promise<string[]>((resolve) => {
    createInterface({ input: victim.stdout }).once("line", (line) => resolve([line]));
  });
  await waitFor({ what: "the child" }, () => must(markedProcesses(dir!).length === 1, markedProcesses(dir!)));
  victim.kill("SIGKILL");
  await waitFor({ what: "the watchdog to clean up" }, () => {
    must(markedProcesses(dir!).length === 0, markedProcesses(dir!));
    must(!existsSync(dir!), `${dir} is still there`);
  });
});
