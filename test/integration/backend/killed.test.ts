/** `vmlet backend` as a process of its own, killed with SIGKILL at any instant and started again. */
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { beforeEach, expect, onTestFinished, test, vi } from "vitest";
import { createProcessEngine } from "../../../providers/local/engines/process/process.ts";
import { run } from "../../../providers/local/host/command.ts";
import type { MachineSpec } from "../../../src/provider/machine.ts";
import { systemClock } from "../../../src/util/clock.ts";
import { BACKEND_PROGRAM, KillableBackend, livesThroughTheDeathOf, PATIENCE } from "./killable.ts";
import { Bench } from "./suite.ts";

let dir: string;
let backend: KillableBackend;

beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), "vmlet-kill-"));
  const made = new KillableBackend(dir);
  backend = made;
  onTestFinished(async () => {
    await made.kill();
    await removeAll(made.stateDir);
    rmSync(join(made.stateDir, ".."), { recursive: true, force: true });
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

const shell = (script: string, more: Partial<MachineSpec> = {}): MachineSpec => ({
  labels: {},
  restart_policy: "never",
  containers: [{ name: "a", image: "none", command: ["sh", "-c", script] }],
  ...more,
});

test.skipIf(process.getuid!() !== 0)(
  "a second backend on the same state directory is refused, also in namespaces of its own",
  async () => {
    await backend.start();
    const config = JSON.parse(readFileSync(join(dir, "backend.yaml"), "utf8")) as object;
    writeFileSync(join(dir, "second.yaml"), JSON.stringify({ ...config, listen: { socket: join(dir, "api2") } }));
    const argv = [process.execPath, BACKEND_PROGRAM, "backend", "--config", join(dir, "second.yaml")];
    const second = run("unshare", ["--net", "--pid", "--fork", "--kill-child", ...argv], {
      signal: AbortSignal.timeout(10_000),
    });
    await expect(second).rejects.toThrow(`state directory ${dir}/state is in use by another backend`);
  },
);

test("a container that runs over the backend's death keeps its id, and its log has no hole", async () => {
  const end = join(dir, "end");
  await livesThroughTheDeathOf(backend, shell, { inside: end, path: end });
});

test("an end that comes while the backend is dead is told by the next one, with its code and its time", async () => {
  await backend.start();
  await backend.call(
    "PUT",
    "/v1/machines/m1",
    shell(`while [ ! -e ${dir}/end ]; do sleep 0.01; done; echo n=1; touch ${dir}/ended; exit 6`),
  );
  await backend.reaches("m1", "running");
  await backend.kill();
  writeFileSync(join(dir, "end"), "");
  await vi.waitFor(() => expect(existsSync(join(dir, "ended"))).toBe(true), PATIENCE);
  await backend.start();
  const { terminated } = (await backend.reaches("m1", "stopped")).containers[0]!;
  expect(terminated).toMatchObject({ exit_code: 6, reason: "Error" });
  expect(Date.parse(terminated!.started_at!)).toBeLessThanOrEqual(Date.parse(terminated!.finished_at));
  expect(await backend.logNumbers("m1")).toEqual([1]);
});

test("a stop under way goes on after the backend's death", async () => {
  await backend.start();
  await backend.call("PUT", "/v1/machines/m1", shell("trap '' TERM; echo n=1; while :; do sleep 0.05; done"));
  await vi.waitFor(async () => expect(await backend.logNumbers("m1")).toEqual([1]), PATIENCE);
  await backend.call("POST", "/v1/machines/m1/stop", { grace_seconds: 3 });
  await backend.kill();
  await backend.start();
  expect((await backend.reaches("m1", "stopped")).containers[0]!.terminated?.exit_code).toBe(137);
});

test("however often the backend is killed while it starts machines, each container runs exactly once", async () => {
  const ids = Array.from({ length: 12 }, (_, index) => `m${index}`);
  const spec = (id: string) => shell(`echo run >> ${dir}/${id}`);
  for (let round = 0; round < 4; round++) {
    await backend.start();
    for (const [index, id] of ids.entries()) {
      await backend.call("PUT", `/v1/machines/${id}`, spec(id));
      if (index === round * 3) break;
    }
    // Somewhere in the midst of starting: at once, or when some file has been written.
    if (round % 2 === 1)
      await vi.waitFor(() => expect(existsSync(join(dir, ids[round * 3]!))).toBe(true), { ...PATIENCE, interval: 1 });
    await backend.kill();
  }
  await backend.start();
  for (const id of ids) await backend.call("PUT", `/v1/machines/${id}`, spec(id));
  for (const id of ids) await backend.reaches(id, "stopped");
  expect(ids.map((id) => readFileSync(join(dir, id), "utf8"))).toEqual(ids.map(() => "run\n"));
});
