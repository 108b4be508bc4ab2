import { appendFileSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import promises from "node:fs/promises";
import { syncBuiltinESMExports } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { beforeEach, expect, onTestFinished, test, vi } from "vitest";
import { FollowedLog, LogWatches } from "../../../providers/local/shim/log-watch.ts";
import type { LogLine } from "../../../src/provider/provider.ts";
import { VirtualClock } from "../../support/virtual-clock.ts";
import { systemClock } from "../../../src/util/clock.ts";
import { readLog, type ReadLogOptions } from "../../../providers/local/shim/log-reader.ts";

let dir: string;

beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), "vmlet-logs-"));
  const made = dir;
  onTestFinished(() => rmSync(made, { recursive: true, force: true }));
});

const line = (second: number, text: string, stream = "stdout", tag = "F") =>
  `2026-01-01T00:00:0${second}.000000000Z ${stream} ${tag} ${text}\n`;

const options = (more: Partial<ReadLogOptions> = {}): ReadLogOptions => ({
  clock: systemClock,
  signal: AbortSignal.timeout(5_000),
  follow: false,
  complete: () => true,
  changed: () => new Promise(() => {}),
  ...more,
});

async function read(more: Partial<ReadLogOptions> = {}): Promise<string[]> {
  const texts: string[] = [];
  for await (const lines of readLog(dir, options(more)))
    for (const { content } of lines) texts.push(content.toString());
  return texts;
}

function threeSegments(): void {
  writeFileSync(join(dir, "log.0"), line(0, "a") + line(1, "b", "stderr"));
  writeFileSync(join(dir, "log.1"), line(2, "c") + line(3, "d", "stderr"));
  writeFileSync(join(dir, "log.2"), line(4, "e"));
}

test("a log is read through all its segments in order", async () => {
  threeSegments();
  expect(await read()).toEqual(["a", "b", "c", "d", "e"]);
});

test.each([
  [0, []],
  [1, ["e"]],
  [2, ["d", "e"]],
  [4, ["b", "c", "d", "e"]],
  [99, ["a", "b", "c", "d", "e"]],
])("tail %i gives that many lines from the end, over segments", async (tail, expected) => {
  threeSegments();
  expect(await read({ tail })).toEqual(expected);
});

test("tail counts only lines of the wanted stream", async () => {
  threeSegments();
  expect(await read({ tail: 1, stream: "stderr" })).toEqual(["d"]);
});

test("since leaves out what is older, whatever its number of decimals", async () => {
  threeSegments();
  expect(await read({ since: "2026-01-01T00:00:02.5Z" })).toEqual(["d", "e"]);
});

test("a byte limit counts newlines and cuts the last line", async () => {
  writeFileSync(join(dir, "log.0"), line(0, "abc") + line(1, "defgh"));
  expect(await read({ limitBytes: 6 })).toEqual(["abc", "de"]);
});

test("the parts of a line count once for tail", async () => {
  writeFileSync(join(dir, "log.0"), line(0, "x") + line(1, "part", "stdout", "P") + line(1, "rest"));
  expect(await read({ tail: 1 })).toEqual(["part", "rest"]);
});

test("a line that is still being written is not read yet", async () => {
  writeFileSync(join(dir, "log.0"), line(0, "a") + "2026-01-01T00:00:01.0");
  expect(await read()).toEqual(["a"]);
});

test.each([1, undefined])("without follow, what is written while it is read is not of it (tail %s)", async (tail) => {
  writeFileSync(join(dir, "log.0"), line(0, "a"));
  const texts: string[] = [];
  for await (const lines of readLog(dir, options({ tail, complete: () => false }))) {
    texts.push(...lines.map(({ content }) => content.toString()));
    appendFileSync(join(dir, "log.0"), line(1, "b"));
    writeFileSync(join(dir, "log.1"), line(2, "c"));
  }
  expect(texts).toEqual(["a"]);
});

test("follow goes on over a rotation and ends when the container does", async () => {
  writeFileSync(join(dir, "log.0"), line(0, "a"));
  let complete = false;
  const ended = Promise.withResolvers<void>();
  const texts: string[] = [];
  const following = { follow: true, complete: () => complete, changed: () => ended.promise };
  for await (const lines of readLog(dir, options(following))) {
    for (const { content } of lines) texts.push(content.toString());
    if (texts.length === 1) appendFileSync(join(dir, "log.0"), line(1, "b"));
    if (texts.length === 2) writeFileSync(join(dir, "log.1"), line(2, "c"));
    if (texts.length === 3) {
      appendFileSync(join(dir, "log.1"), line(3, "d"));
      complete = true;
      ended.resolve();
    }
  }
  expect(texts).toEqual(["a", "b", "c", "d"]);
});

test("all who follow a log share one watch of it, which goes with the last of them", async () => {
  writeFileSync(join(dir, "log.0"), line(0, "a"));
  const watches = new LogWatches();
  const abort = new AbortController();
  const follow = () => readLog(dir, options({ follow: true, complete: () => false, signal: abort.signal, watches }));
  const followers = [follow(), follow(), follow()];
  for (const follower of followers) await follower.next();
  const next = followers.map((follower) => follower.next());
  expect(watches.size).toBe(1);
  appendFileSync(join(dir, "log.0"), line(1, "b"));
  for (const { value } of await Promise.all(next)) expect(value?.[0]?.content.toString()).toBe("b");
  await followers[0]!.return(undefined);
  expect(watches.size).toBe(1);
  abort.abort();
  for (const follower of followers) await follower.return(undefined);
  expect(watches.size).toBe(0);
});

test("what is written to a log is read once for all who follow it", async () => {
  writeFileSync(join(dir, "log.0"), line(0, "a"));
  const opened = vi.spyOn(promises, "open");
  syncBuiltinESMExports();
  onTestFinished(() => {
    opened.mockRestore();
    syncBuiltinESMExports();
  });
  const watches = new LogWatches();
  const abort = new AbortController();
  const follow = () => readLog(dir, options({ follow: true, complete: () => false, signal: abort.signal, watches }));
  const followers = Array.from({ length: 20 }, follow);
  const batch = async () => await Promise.all(followers.map(async (follower) => (await follower.next()).value));
  await batch();
  const first = "b";
  const rest = ["c", "d", "e", "f", "g"];
  // The first look of each is its own.
  const next = batch();
  appendFileSync(join(dir, "log.0"), line(1, first));
  await next;
  const before = opened.mock.calls.length;
  for (const text of rest) {
    const told = batch();
    appendFileSync(join(dir, "log.0"), line(1, text));
    for (const lines of await told)
      expect((lines as LogLine[]).map(({ content }) => content.toString())).toEqual([text]);
  }
  // Twice for each line: what it is, and that there is no more. A slow host wakes some of them late.
  expect(opened.mock.calls.length - before).toBeLessThan(rest.length * 8);
  abort.abort();
  for (const follower of followers) await follower.return(undefined);
});

test("a line that is longer than what is read at a time reaches who follows", async () => {
  writeFileSync(join(dir, "log.0"), line(0, "a"));
  const abort = new AbortController();
  const log = readLog(dir, options({ follow: true, complete: () => false, signal: abort.signal }));
  await log.next();
  for (const text of ["b", "x".repeat(3 << 20), "c"]) {
    const next = log.next();
    appendFileSync(join(dir, "log.0"), line(1, text));
    expect((await next).value?.map(({ content }: { content: Buffer }) => content.length)).toEqual([text.length]);
  }
  abort.abort();
  await log.return(undefined);
});

test("who follows a log that grows line by line looks at most each 20 ms, and misses nothing", async () => {
  writeFileSync(join(dir, "log.0"), "");
  const looked = vi.spyOn(FollowedLog.prototype, "look");
  onTestFinished(() => looked.mockRestore());
  const clock = new VirtualClock();
  const abort = new AbortController();
  const log = readLog(dir, options({ clock, follow: true, complete: () => false, signal: abort.signal }));
  let total = 0;
  const reading = (async () => {
    for await (const lines of log) total += lines.length;
  })();
  for (let written = 1; written <= 200; written++) {
    appendFileSync(join(dir, "log.0"), line(1, "x"));
    for (let turn = 0; turn < 20; turn++) await new Promise((resolve) => setImmediate(resolve));
    if (written % 20 === 0) await clock.advance(20);
  }
  // 200 ms of the clock, and the first look: lines that come while it reads are of the same look.
  expect(looked.mock.calls.length).toBeLessThanOrEqual(11);
  while (total < 200) await clock.advance(1_000);
  abort.abort();
  await reading;
});

test("follow with tail 0 shows only what comes", async () => {
  writeFileSync(join(dir, "log.0"), line(0, "a"));
  const abort = new AbortController();
  const log = readLog(dir, options({ follow: true, tail: 0, complete: () => false, signal: abort.signal }));
  let first: string | undefined;
  const reading = log.next().then(({ value }) => (first = value?.[0]?.content.toString()));
  // Written again and again, because it shows only what is written after it has found the end.
  while (first === undefined) {
    appendFileSync(join(dir, "log.0"), line(1, "b"));
    await new Promise((resolve) => setImmediate(resolve));
  }
  await reading;
  expect(first).toBe("b");
  abort.abort();
});

test("times that a runtime has written with fewer decimals have nine", async () => {
  writeFileSync(join(dir, "log.0"), "2026-01-01T00:00:00.61623776Z stdout F a\n2026-01-01T00:00:01Z stdout F b\n");
  const times: string[] = [];
  for await (const lines of readLog(dir, options())) for (const { at } of lines) times.push(at);
  expect(times).toEqual(["2026-01-01T00:00:00.616237760Z", "2026-01-01T00:00:01.000000000Z"]);
});
