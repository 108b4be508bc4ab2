/** `vmlet backend` as a process of its own, killed with SIGKILL at any instant and started again. */
import { spawn, type ChildProcess } from "node:child_process";
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { request } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { beforeEach, expect, onTestFinished, test, vi } from "vitest";
import { createProcessEngine } from "../../../providers/local/engines/process/process.ts";
import { run } from "../../../providers/local/host/command.ts";
import type { Machine, MachineSpec } from "../../../src/provider/machine.ts";
import { systemClock } from "../../../src/util/clock.ts";
import { Bench } from "./suite.ts";

const program = join(import.meta.dirname, "../../../src/cli/main.ts");
const PATIENCE = { timeout: 30_000, interval: 10 };

let dir: string;
let backend: ChildProcess | undefined;

beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), "vmlet-kill-"));
  const config = {
    apiVersion: "vmlet.dev/v1",
    kind: "BackendConfig",
    stateDir: join(dir, "state"),
    listen: { socket: join(dir, "api") },
  };
  writeFileSync(join(dir, "backend.yaml"), JSON.stringify(config));
  const made = dir;
  onTestFinished(async () => {
    await killBackend();
    await removeAll(join(made, "state"));
    rmSync(made, { recursive: true, force: true });
  });
});

/** Whatever a failed test has left running goes, too. */
async function removeAll(stateDir: string): Promise<void> {
  const createEngine = () =>
    createProcessEngine({ stateDir, images: {}, addressPool: "127.64.0.0/10", clock: systemClock });
  const bench = new Bench({ name: "process", image: "none", createEngine }, stateDir);
  await bench.open();
  await bench.close();
}

async function start(): Promise<void> {
  backend = spawn(process.execPath, [program, "backend", "--config", join(dir, "backend.yaml")], { stdio: "ignore" });
  await vi.waitFor(async () => expect((await call("GET", "/v1/info")).status).toBe(200), PATIENCE);
}

async function killBackend(): Promise<void> {
  if (backend === undefined || backend.exitCode !== null || backend.signalCode !== null) return;
  const ended = new Promise((resolve) => backend!.once("exit", resolve));
  backend.kill("SIGKILL");
  await ended;
}

function call(method: string, path: string, body?: unknown): Promise<{ status: number; body: unknown; text: string }> {
  return new Promise((resolve, reject) => {
    const outgoing = request(
      { socketPath: join(dir, "api"), method, path, headers: { "content-type": "application/json" } },
      (reply) => {
        let text = "";
        reply.on("data", (chunk) => (text += String(chunk)));
        reply.on("end", () => {
          const json = reply.headers["content-type"]?.startsWith("application/json") === true;
          resolve({ status: reply.statusCode!, body: json && text !== "" ? JSON.parse(text) : undefined, text });
        });
        reply.on("error", reject);
      },
    );
    outgoing.on("error", reject);
    outgoing.end(body === undefined ? undefined : JSON.stringify(body));
  });
}

const shell = (script: string, more: Partial<MachineSpec> = {}): MachineSpec => ({
  labels: {},
  restart_policy: "never",
  containers: [{ name: "a", image: "none", command: ["sh", "-c", script] }],
  ...more,
});

const get = async (id: string) => (await call("GET", `/v1/machines/${id}`)).body as Machine;

async function reaches(id: string, state: string): Promise<Machine> {
  return await vi.waitFor(async () => {
    const machine = await get(id);
    expect(machine.state).toBe(state);
    return machine;
  }, PATIENCE);
}

/** The text of a container's log lines, whatever else the route tells of each. */
async function logNumbers(id: string): Promise<number[]> {
  const { text } = await call("GET", `/v1/machines/${id}/containers/a/logs`);
  return text
    .split("\n")
    .flatMap((line) => /(?:^|\D)n=(\d+)/.exec(line)?.[1] ?? [])
    .map(Number);
}

test.skipIf(process.getuid!() !== 0)(
  "a second backend on the same state directory is refused, also in namespaces of its own",
  async () => {
    await start();
    const config = JSON.parse(readFileSync(join(dir, "backend.yaml"), "utf8")) as object;
    writeFileSync(join(dir, "second.yaml"), JSON.stringify({ ...config, listen: { socket: join(dir, "api2") } }));
    const argv = [process.execPath, program, "backend", "--config", join(dir, "second.yaml")];
    const second = run("unshare", ["--net", "--pid", "--fork", "--kill-child", ...argv], {
      signal: AbortSignal.timeout(10_000),
    });
    await expect(second).rejects.toThrow(`state directory ${dir}/state is in use by another backend`);
  },
);

test("a container that runs over the backend's death keeps its id, and its log has no hole", async () => {
  await start();
  const script = `n=0; while [ ! -e ${dir}/end ]; do n=$((n+1)); echo n=$n; sleep 0.01; done; exit 6`;
  await call("PUT", "/v1/machines/m1", shell(script));
  const before = await reaches("m1", "running");
  await killBackend();
  await start();
  expect((await get("m1")).containers[0]).toMatchObject({
    id: before.containers[0]!.id,
    state: "running",
    restart_count: 0,
  });
  writeFileSync(join(dir, "end"), "");
  expect((await reaches("m1", "stopped")).containers[0]!.terminated).toMatchObject({ exit_code: 6 });
  const numbers = await logNumbers("m1");
  expect(numbers.length).toBeGreaterThan(1);
  expect(numbers).toEqual(numbers.map((_, index) => index + 1));
});

test("an end that comes while the backend is dead is told by the next one, with its code and its time", async () => {
  await start();
  await call(
    "PUT",
    "/v1/machines/m1",
    shell(`while [ ! -e ${dir}/end ]; do sleep 0.01; done; echo n=1; touch ${dir}/ended; exit 6`),
  );
  await reaches("m1", "running");
  await killBackend();
  writeFileSync(join(dir, "end"), "");
  await vi.waitFor(() => expect(existsSync(join(dir, "ended"))).toBe(true), PATIENCE);
  await start();
  const { terminated } = (await reaches("m1", "stopped")).containers[0]!;
  expect(terminated).toMatchObject({ exit_code: 6, reason: "Error" });
  expect(Date.parse(terminated!.started_at!)).toBeLessThanOrEqual(Date.parse(terminated!.finished_at));
  expect(await logNumbers("m1")).toEqual([1]);
});

test("a stop under way goes on after the backend's death", async () => {
  await start();
  await call("PUT", "/v1/machines/m1", shell("trap '' TERM; echo n=1; while :; do sleep 0.05; done"));
  await vi.waitFor(async () => expect(await logNumbers("m1")).toEqual([1]), PATIENCE);
  await call("POST", "/v1/machines/m1/stop", { grace_seconds: 3 });
  await killBackend();
  await start();
  expect((await reaches("m1", "stopped")).containers[0]!.terminated?.exit_code).toBe(137);
});

test("however often the backend is killed while it starts machines, each container runs exactly once", async () => {
  const ids = Array.from({ length: 12 }, (_, index) => `m${index}`);
  const spec = (id: string) => shell(`echo run >> ${dir}/${id}`);
  for (let round = 0; round < 4; round++) {
    await start();
    for (const [index, id] of ids.entries()) {
      await call("PUT", `/v1/machines/${id}`, spec(id));
      if (index === round * 3) break;
    }
    // Somewhere in the midst of starting: at once, or when some file has been written.
    if (round % 2 === 1)
      await vi.waitFor(() => expect(existsSync(join(dir, ids[round * 3]!))).toBe(true), { ...PATIENCE, interval: 1 });
    await killBackend();
  }
  await start();
  for (const id of ids) await call("PUT", `/v1/machines/${id}`, spec(id));
  for (const id of ids) await reaches(id, "stopped");
  expect(ids.map((id) => readFileSync(join(dir, id), "utf8"))).toEqual(ids.map(() => "run\n"));
});
