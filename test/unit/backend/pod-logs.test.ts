/** Pods' logs where those look for them who collect them from a kubelet. */
import {
  appendFileSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { beforeEach, expect, onTestFinished, test } from "vitest";
import { prepareLog, rotateLog, settleLog } from "../../../providers/local/engines/cri/logs.ts";
import { PodLogs } from "../../../providers/local/engines/cri/pod-logs.ts";
import { LABEL_NAMESPACE, LABEL_POD, LABEL_UID } from "../../../src/provider/owner.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { machineSpec } from "../../support/builders.ts";

const LIMITS = { maxBytes: 10, maxFiles: 3 };
const spec = machineSpec({ labels: { [LABEL_NAMESPACE]: "shop", [LABEL_POD]: "web-0", [LABEL_UID]: "u1" } });

let dir: string;
let root: string;
let logs: PodLogs;

beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), "vmlet-pod-logs-"));
  const made = dir;
  onTestFinished(() => rmSync(made, { recursive: true, force: true }));
  root = join(dir, "log/pods");
  logs = new PodLogs(root, silentLogger);
});

function instanceOf(attempt: number) {
  const instance = { name: "app", attempt, dir: join(dir, `state/app-${attempt}`) };
  mkdirSync(instance.dir, { recursive: true });
  return instance;
}

async function begun(attempt: number) {
  const instance = instanceOf(attempt);
  await logs.begin(spec, instance);
  await prepareLog(instance.dir);
  await logs.named(spec, instance, `id${attempt}`);
  return instance;
}

const writeLog = ({ dir }: { dir: string }, text: string) => appendFileSync(join(dir, "log"), text);
const shown = (attempt: number) => join(root, `shop_web-0_u1/app/${attempt}.log`);
const links = () => readdirSync(join(dir, "log/containers"));
/** What a runtime does then: it makes the file. */
const reopen =
  ({ dir }: { dir: string }, text = "") =>
  async () =>
    appendFileSync(join(dir, "log"), text);

test("A log is a file by a kubelet's name, and has a link by the container's", async () => {
  writeLog(await begun(0), "hello\n");
  expect(readFileSync(shown(0), "utf8")).toBe("hello\n");
  expect(links()).toEqual(["web-0_shop_app-id0.log"]);
  expect(readFileSync(join(dir, "log/containers/web-0_shop_app-id0.log"), "utf8")).toBe("hello\n");
  // Who was given the folder of logs alone reads it: it is no link out of there.
  rmSync(join(dir, "state"), { recursive: true });
  expect(readFileSync(shown(0), "utf8")).toBe("hello\n");
});

test("A log that is rotated is another file from then on, with what is written next", async () => {
  const instance = await begun(0);
  writeLog(instance, "more than ten bytes\n");
  const { ino } = statSync(shown(0));
  await rotateLog(instance.dir, LIMITS, reopen(instance, "next\n"));
  expect(statSync(shown(0)).ino).not.toBe(ino);
  expect(readFileSync(shown(0), "utf8")).toBe("next\n");
  writeLog(instance, "last\n");
  await settleLog(instance.dir, LIMITS);
  expect(readFileSync(shown(0), "utf8")).toBe("next\nlast\n");
  expect(readdirSync(join(root, "shop_web-0_u1/app"))).toEqual(["0.log"]);
});

test("Of a container that is restarted the log of the run before stays, and no older one", async () => {
  for (const attempt of [0, 1, 2]) writeLog(await begun(attempt), `run ${attempt}\n`);
  expect(readdirSync(join(root, "shop_web-0_u1/app"))).toEqual(["1.log", "2.log"]);
  expect(links().toSorted()).toEqual(["web-0_shop_app-id1.log", "web-0_shop_app-id2.log"]);
  expect(readFileSync(shown(1), "utf8")).toBe("run 1\n");
});

test("The logs go with the machine, and others' stay", async () => {
  await begun(0);
  const other = join(root, "shop_web-0_u2/app");
  mkdirSync(other, { recursive: true });
  await logs.remove(spec);
  expect(readdirSync(root)).toEqual(["shop_web-0_u2"]);
  expect(links()).toEqual([]);
});

test.each([
  ["leads out of the folder", { [LABEL_NAMESPACE]: "..", [LABEL_POD]: "x", [LABEL_UID]: "u" }],
  ["is a path", { [LABEL_NAMESPACE]: "a", [LABEL_POD]: "x/../../../etc", [LABEL_UID]: "u" }],
  ["is missing", {}],
])("A machine whose pod's name %s shows nothing", async (_what, labels) => {
  const instance = instanceOf(0);
  await logs.begin({ ...spec, labels }, instance);
  await prepareLog(instance.dir);
  await logs.named({ ...spec, labels }, instance, "id");
  await logs.remove({ ...spec, labels });
  expect(existsSync(join(dir, "log"))).toBe(false);
});

test("A log that cannot be shown is written all the same", async () => {
  mkdirSync(join(dir, "log"));
  appendFileSync(root, "a file where the folder should be");
  const instance = await begun(0);
  writeLog(instance, "more than ten bytes\n");
  await rotateLog(instance.dir, LIMITS, reopen(instance));
  expect(readFileSync(join(instance.dir, "log.0"), "utf8")).toBe("more than ten bytes\n");
});

test("The owner is told when the logs are on another file system than the backend's state", () => {
  expect(PodLogs.check(root, join(dir, "state"))).toEqual([]);
  expect(PodLogs.check("/proc/logs", dir)).toMatchObject([
    { fatal: false, problem: expect.stringContaining("/proc/logs") },
  ]);
});
