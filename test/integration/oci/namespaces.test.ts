/** Process namespaces that containers join: held, so that the number of a process that has ended leads nowhere else. */
import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync, mkdtempSync, readFileSync, readlinkSync, rmSync, statSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { holdProcesses, isNamespace } from "../../../providers/local/engines/oci/namespaces.ts";
import { unmountBelow } from "../../../providers/local/host/mounts.ts";
import { leaveOut } from "../../support/left-out.ts";

const missing = process.getuid?.() === 0 ? [] : ["root"];
if (missing.length > 0) leaveOut("held namespaces", missing);

describe.skipIf(missing.length > 0)("a process namespace that is held", () => {
  let dir: string;
  let file: string;
  let owner: ChildProcess;
  let pid: number;

  beforeEach(async () => {
    dir = mkdtempSync(join(tmpdir(), "vmlet-ns-"));
    file = join(dir, "processes");
    // The child is the first process of its namespace; the number that counts is the one that this host has for it.
    owner = spawn("unshare", ["--pid", "--fork", "--kill-child", "sh", "-c", "echo up; exec sleep 1000"], {
      stdio: ["ignore", "pipe", "ignore"],
    });
    await once(owner.stdout!, "data");
    const children = () => readFileSync(`/proc/${owner.pid}/task/${owner.pid}/children`, "latin1").trim();
    pid = Number(children());
  });
  afterEach(async () => {
    owner.kill("SIGKILL");
    await unmountBelow(dir);
    rmSync(dir, { recursive: true });
  });
  const inode = () => Number(/\[(\d+)\]/.exec(readlinkSync(`/proc/${pid}/ns/pid`))![1]);
  const end = async () => {
    process.kill(pid, "SIGKILL");
    await once(owner, "exit");
  };
  const theirs = () => Promise.resolve(true);

  test("is the process's, and stays that when the process has ended", async () => {
    const before = inode();
    expect(await holdProcesses(pid, theirs, file)).toBe(true);
    expect(await isNamespace(file)).toBe(true);
    await end();
    expect(statSync(file).ino).toBe(before);
  });

  test("is not one of a process that has that number now", async () => {
    expect(await holdProcesses(pid, () => Promise.resolve(false), file)).toBe(false);
    expect(existsSync(file)).toBe(false);
  });

  test("is none when the process has ended", async () => {
    await end();
    expect(await holdProcesses(pid, theirs, file)).toBe(false);
  });
});
