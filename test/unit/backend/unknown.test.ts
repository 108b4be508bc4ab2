/** What cannot be known just now is not gone: this process, or the host, is out of descriptors or memory for a while. */
import { spawn } from "node:child_process";
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  rmSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, onTestFinished, test } from "vitest";
import { run } from "../../../providers/local/host/command.ts";
import { allProcesses, bootId, isAlive, processEnv, processStat } from "../../../providers/local/host/proc.ts";
import { installShim, recordedExit, startShim, watchShim } from "../../../providers/local/shim/client.ts";
import type { ShimExit } from "../../../providers/local/engine.ts";
import { settle, VirtualClock } from "../../support/virtual-clock.ts";
import { type Errno, Faults } from "../../support/faults.ts";

let dir: string;
beforeEach(() => (dir = mkdtempSync(join(tmpdir(), "vmlet-unknown-"))));
afterEach(() => rmSync(dir, { recursive: true, force: true }));

/** Of this process. */
const openFiles = () =>
  readdirSync("/proc/self/fd").flatMap((fd) => {
    try {
      return readlinkSync(`/proc/self/fd/${fd}`);
    } catch {
      return []; // the one by which the folder was read
    }
  });

const own = processStat(process.pid)!;

describe.each(["EMFILE", "ENFILE", "ENOMEM", "EIO"] satisfies Errno[])("while reading fails with %s", (errno) => {
  const begin = (about: (path: string) => boolean) => Faults.install().fail({ kind: "read", errno, about });

  test("a process is not gone", () => {
    begin((path) => path.startsWith("/proc/"));
    expect(isAlive(own.pid, own.startTime)).toBe(true);
    expect(() => processStat(own.pid)).toThrow(errno);
  });

  test("no list of processes leaves some out", async () => {
    begin((path) => path === `/proc/${own.pid}/stat`);
    await expect(allProcesses()).rejects.toThrow(errno);
  });

  test("no process is without its mark", async () => {
    begin((path) => path.endsWith("/environ"));
    await expect(processEnv(own.pid, "PATH")).rejects.toThrow(errno);
  });

  test("a shim's container has not ended nobody knows how, and its end is told when it can be read", async () => {
    const clock = new VirtualClock();
    writeFileSync(join(dir, "shim-claim"), `${2 ** 22 - 1} 1 ${bootId()}`);
    writeFileSync(
      join(dir, "shim-exit.json"),
      JSON.stringify({ state: "exited", exit: { exitCode: 3 }, finishedAt: 1 }),
    );
    const mend = begin((path) => path.endsWith("shim-exit.json"));
    const ends: ShimExit[] = [];
    const watch = watchShim(dir, join(dir, "no-socket"), clock, {
      started() {},
      exited: (exit) => ends.push(exit),
      gone() {},
    });
    await settle(20);
    expect(ends).toEqual([]);
    mend();
    while (ends.length === 0) await clock.advance(500);
    expect(ends).toEqual([expect.objectContaining({ exitCode: 3 })]);
    watch.close();
  });
});

test("a process that had this number before the host booted is not the one that has it now", () => {
  const clock = new VirtualClock();
  writeFileSync(join(dir, "shim-claim"), `${own.pid} ${own.startTime} another-boot`);
  const ends: ShimExit[] = [];
  const { promise, resolve } = Promise.withResolvers<void>();
  watchShim(dir, join(dir, "no-socket"), clock, {
    started() {},
    exited: (exit) => void ends.push(exit),
    gone: resolve,
  });
  return promise.then(() => expect(ends).toEqual([expect.objectContaining({ lost: true })]));
});

test("what a shim could not know of a guest that is lost is no end of its container", () => {
  const exit = { exitCode: 255, lost: true };
  writeFileSync(join(dir, "shim-exit.json"), JSON.stringify({ state: "exited", exit, finishedAt: 1 }));
  expect(recordedExit(dir)).toBeUndefined();
});

describe.each(["EMFILE", "EAGAIN", "ENOMEM"] satisfies Errno[])("a process that cannot be started for %s", (errno) => {
  test("is an error of who asked for it, and of nobody else", async () => {
    const mend = Faults.install().fail({ kind: "spawn", errno });
    await expect(run("true", [])).rejects.toThrow(errno);
    mend();
    await expect(run("true", [])).resolves.toBeDefined();
  });

  test("that is a shim leaves its instance never begun, and no descriptor open", async () => {
    const mend = Faults.install().fail({ kind: "spawn", errno });
    const launch = { argv: ["true"], env: {}, cwd: "/", tty: false, stdin: false, stdinOnce: false, socket: "s" };
    const limits = { logMaxBytes: 1, logMaxFiles: 1, ptyModule: "" };
    const start = startShim("shim.js", dir, { ...launch, ...limits }, join(dir, "launch.json"));
    await expect(start).rejects.toMatchObject({ name: "NeverBegunError", message: expect.stringContaining(errno) });
    expect(openFiles().filter((path) => path.startsWith(dir))).toEqual([]);
    mend();
  });
});

describe("the shim's program", () => {
  const files = () =>
    readdirSync(
      join(
        dir,
        readdirSync(dir).find((name) => name.startsWith("shim-"))!,
      ),
    ).toSorted();

  test.each([
    ["is empty", (file: string) => writeFileSync(file, "")],
    ["is missing", (file: string) => rmSync(file)],
    ["is another", (file: string) => writeFileSync(file, "export {};")],
  ])("is made again where a file of it %s", (_title, spoil) => {
    const program = installShim(dir);
    const whole = readFileSync(join(program, "../frames.js"), "utf8");
    spoil(join(program, "../frames.js"));
    expect(installShim(dir)).toBe(program);
    expect(readFileSync(join(program, "../frames.js"), "utf8")).toBe(whole);
  });

  test("is made once, and nothing of a backend that was killed meanwhile stays", () => {
    const program = installShim(dir);
    const made = files();
    mkdirSync(join(dir, "shim-0123456789ab.4711"));
    expect(installShim(dir)).toBe(program);
    expect(files()).toEqual(made);
    expect(readdirSync(dir)).toHaveLength(1);
  });

  test("of another version goes, but not while something runs that was started from there", () => {
    const [idle, used] = ["shim-0123456789ab", "shim-ba9876543210"].map((name) => join(dir, name));
    for (const folder of [idle!, used!]) mkdirSync(folder);
    writeFileSync(join(used!, "shim.js"), "setTimeout(() => {}, 60_000);");
    const shim = spawn(process.execPath, [join(used!, "shim.js")], { stdio: "ignore" });
    onTestFinished(() => void shim.kill("SIGKILL"));
    installShim(dir);
    expect([existsSync(idle!), existsSync(used!)]).toEqual([false, true]);
  });

  test("is not taken for whole when it could not be flushed", () => {
    const mend = Faults.install().fail({ kind: "flush", errno: "EIO" });
    expect(() => installShim(dir)).toThrow("EIO");
    mend();
    expect(readFileSync(installShim(dir), "utf8")).not.toBe("");
  });
});
