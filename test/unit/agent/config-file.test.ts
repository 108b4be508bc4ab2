import { beforeEach, expect, test } from "vitest";
import { ConfigFile } from "../../../src/agent/config-file.ts";
import { parseConfig } from "../../../src/config/load.ts";
import type { AgentConfig } from "../../../src/config/schema.ts";
import { FILE_POLL_MS } from "../../../src/util/reloadable.ts";
import { collectingLogger } from "../../support/collecting-logger.ts";
import { VirtualClock } from "../../support/virtual-clock.ts";

const text = (...names: string[]) =>
  JSON.stringify({
    apiVersion: "vmlet.dev/v1",
    kind: "AgentConfig",
    nodes: names.map((name, index) => ({ name, provider: { type: "memory" }, kubelet: { port: 20_000 + index } })),
  });

let clock: VirtualClock;
let content: string | Error;
let log: ReturnType<typeof collectingLogger>;
let file: ConfigFile;
/** The names of the nodes of each configuration that was taken. */
let taken: string[][];

beforeEach(() => {
  clock = new VirtualClock();
  content = text("a");
  log = collectingLogger();
  taken = [];
  file = new ConfigFile({
    path: "vmlet.yaml",
    flags: {},
    config: parseConfig(content, "vmlet.yaml"),
    clock,
    logger: log,
    read: () => (typeof content === "string" ? Promise.resolve(content) : Promise.reject(content)),
  });
  const stop = new AbortController();
  void file.run(
    stop.signal,
    (config: AgentConfig) => taken.push(config.nodes.map(({ name }) => name)),
    () => {},
  );
  return () => stop.abort();
});

const looks = (count: number) => clock.advance(count * FILE_POLL_MS);

test("a file that says the same is not taken again", async () => {
  content = `${text("a")}\n# another comment`;
  await looks(5);
  expect(taken).toEqual([]);
});

test("a file that changed is taken once", async () => {
  await looks(1);
  content = text("a", "b");
  await looks(5);
  expect(taken).toEqual([["a", "b"]]);
});

test("a file that is still being written is not taken for what it will be", async () => {
  await looks(2);
  content = text("a");
  for (const names of [["b"], ["b", "c"], ["b", "c", "d"]]) {
    content = text(...names);
    await clock.advance(1_000);
  }
  await looks(2);
  expect(taken).toEqual([["b", "c", "d"]]);
});

test("a fault is told of once, and the configuration stays until there is one without", async () => {
  content = "nodes: 1";
  await looks(5);
  expect(file.fault).toContain("vmlet.yaml:1:1: nodes:");
  expect(log.lines.map(({ level }) => level)).toEqual(["error"]);
  content = text("c");
  await looks(2);
  expect([file.fault, taken]).toEqual([undefined, [["c"]]]);
});

test("a file that cannot be read for a while is no change", async () => {
  await looks(2);
  content = new Error("gone");
  await looks(3);
  expect(file.fault).toBe("cannot read the configuration file vmlet.yaml: gone");
  expect(log.lines).toHaveLength(1);
  content = text("a");
  await looks(1);
  expect([file.fault, taken]).toEqual([undefined, []]);
});

test("the time of the last configuration that was taken is known", async () => {
  const start = file.readAt;
  await looks(2);
  content = "nodes: 1";
  const before = file.readAt;
  await looks(2);
  expect(file.readAt).toBe(before);
  content = text("b");
  await looks(2);
  expect(file.readAt).toBeGreaterThan(start);
});
