import { execFileSync, spawn } from "node:child_process";
import { closeSync, constants, mkdtempSync, openSync, readFileSync, readSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { LogSink } from "../../../src/telemetry/log-sink.ts";
import { VirtualClock } from "../../support/virtual-clock.ts";

const LINE = `${"x".repeat(999)}\n`;
/** Far more than a pipe holds and than may wait. */
const MANY = 3000;

let folder: string;
let fds: number[];
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), "log-sink-"));
  fds = [];
});
afterEach(() => {
  for (const fd of fds) closeSync(fd);
  rmSync(folder, { recursive: true });
});

function sinkFor(destination: number) {
  const clock = new VirtualClock();
  return { clock, sink: new LogSink({ destination, clock, droppedLine: (count) => `dropped ${count}\n` }) };
}

/** A pipe that is read only when a test says so. */
function pipe() {
  const path = join(folder, "pipe");
  execFileSync("mkfifo", [path]);
  const fd = openSync(path, constants.O_RDWR | constants.O_NONBLOCK);
  fds.push(fd);
  const read = () => {
    let text = "";
    const buffer = Buffer.alloc(1 << 16);
    for (;;) {
      try {
        text += buffer.subarray(0, readSync(fd, buffer)).toString();
      } catch {
        return text;
      }
    }
  };
  return { fd, read };
}

/** Reads until nothing more comes. */
async function readAll(read: () => string, clock: VirtualClock): Promise<string> {
  let text = "";
  for (let part = read(); part !== ""; part = read()) {
    text += part;
    await clock.advance(100);
  }
  return text;
}

describe("a pipe", () => {
  test("gets each line at once while somebody reads", () => {
    const { fd, read } = pipe();
    const { sink } = sinkFor(fd);
    sink.write("a\n");
    sink.write("b\n");
    expect(read()).toBe("a\nb\n");
  });

  test("that nobody reads keeps nobody waiting", () => {
    const { fd } = pipe();
    const { sink } = sinkFor(fd);
    for (let i = 0; i < MANY; i++) sink.write(LINE);
    expect(sink.dropped).toBeGreaterThan(0);
  });

  test("gets what waited, whole and in order, when it is read again, and one line about what is missing", async () => {
    const { fd, read } = pipe();
    const { sink, clock } = sinkFor(fd);
    for (let i = 0; i < MANY; i++) sink.write(`${String(i).padStart(999, ".")}\n`);
    const { dropped } = sink;
    const lines = (await readAll(read, clock)).trimEnd().split("\n");
    expect(lines.pop()).toBe(`dropped ${dropped}`);
    expect(lines.map((line) => Number(line.replaceAll(".", "")))).toEqual(
      Array.from({ length: MANY - dropped }, (_, i) => i),
    );
    sink.write("again\n");
    expect(read()).toBe("again\n");
    expect(clock.pending).toBe(0);
  });

  test("shares no flag with others who write to it", () => {
    const path = join(folder, "shared");
    execFileSync("mkfifo", [path]);
    const fd = openSync(path, constants.O_RDWR);
    fds.push(fd);
    sinkFor(fd);
    const flags = parseInt(/^flags:\s*(\d+)/m.exec(readFileSync(`/proc/self/fdinfo/${fd}`, "utf8"))![1]!, 8);
    expect(flags & constants.O_NONBLOCK).toBe(0);
  });
});

describe("a file", () => {
  test("gets every line, after those that are there", () => {
    const path = join(folder, "log");
    const fd = openSync(path, "a");
    fds.push(fd);
    const { sink } = sinkFor(fd);
    for (let i = 0; i < MANY; i++) sink.write(LINE);
    expect(readFileSync(path, "utf8")).toBe(LINE.repeat(MANY));
  });

  test("on a full disk keeps nobody waiting, and what it costs is counted", () => {
    const fd = openSync("/dev/full", "w");
    fds.push(fd);
    const { sink } = sinkFor(fd);
    for (let i = 0; i < MANY; i++) sink.write(LINE);
    expect(sink.dropped).toBeGreaterThan(MANY / 2);
  });
});

describe("a process", () => {
  const logger = join(import.meta.dirname, "../../../src/telemetry/logger.ts");
  const run = (script: string) => {
    const child = spawn(process.execPath, [
      "--input-type=module",
      "-e",
      `import { createLogger } from "${logger}";${script}`,
    ]);
    child.stderr.pause();
    const said = new Promise<string>((resolve) => child.stdout.once("data", (chunk) => resolve(String(chunk))));
    const ended = new Promise<number | null>((resolve) => child.once("exit", resolve));
    return { child, said, ended };
  };
  const flood = `
    const logger = createLogger({ level: "info" });
    for (let i = 0; i < ${MANY}; i++) logger.info({ pad: "x".repeat(999) }, "line");`;

  test("whose standard error nobody reads goes on", async () => {
    const { child, said } = run(`${flood} setTimeout(() => console.log("alive"), 1); setInterval(() => {}, 1000);`);
    expect(await said).toBe("alive\n");
    child.kill("SIGKILL");
  });

  test("whose standard error nobody reads can end", async () => {
    const { ended } = run(`${flood} process.exit(3);`);
    expect(await ended).toBe(3);
  });

  test("writes its last lines when it ends", async () => {
    const { child } = run(
      `const logger = createLogger({ level: "info" }); logger.warn({}, "the last"); process.exit(0);`,
    );
    let text = "";
    child.stderr.on("data", (chunk) => (text += chunk)).resume();
    await new Promise((resolve) => child.once("close", resolve));
    expect(text).toContain('"msg":"the last"');
  });
});
