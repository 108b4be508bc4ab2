/** A backend of engine cri that is killed and started again: its containerd and its machines go on meanwhile. */
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeEach, expect, onTestFinished, test, vi } from "vitest";
import { createCriEngine } from "../../../providers/local/engines/cri/engine.ts";
import { HostNetwork } from "../../../providers/local/network/network.ts";
import type { MachineSpec } from "../../../src/provider/machine.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { systemClock } from "../../../src/util/clock.ts";
import { missingForContainerd } from "../../support/containerd.ts";
import { testNetwork } from "../../support/host.ts";
import { leaveOut } from "../../support/left-out.ts";
import { busyboxImage, missingForImages, startRegistry } from "../../support/registry.ts";
import { KillableBackend, PATIENCE } from "../backend/killable.ts";
import { Bench, LOG_LIMITS } from "../backend/suite.ts";

const missing = [(await missingForContainerd()) ?? [], missingForImages() ?? []].flat();

if (missing.length > 0) leaveOut("a killed backend of engine cri", missing);
else {
  const registry = await startRegistry();
  await registry.push("t/busybox:1", await busyboxImage());
  const image = `${registry.host}/t/busybox:1`;
  const { dir: _dir, ...network } = testNetwork("");
  const images = { insecureRegistries: [registry.host] };
  afterAll(async () => {
    await registry.stop();
    await new HostNetwork({ dir: "/nonexistent/network", ...network }).remove();
  });

  let backend: KillableBackend;
  beforeEach(() => {
    const dir = mkdtempSync(join(tmpdir(), "vmlet-kill-"));
    const made = new KillableBackend(dir, { engine: { type: "cri", network, images } });
    backend = made;
    onTestFinished(async () => {
      await made.kill();
      await removeAll(made.stateDir);
      rmSync(dir, { recursive: true, force: true });
    });
  });

  /** Whatever a failed test has left running goes, too. */
  async function removeAll(stateDir: string): Promise<void> {
    const surroundings = { clock: systemClock, logger: silentLogger, logLimits: LOG_LIMITS };
    const createEngine = () => createCriEngine({ stateDir, network, images, ...surroundings });
    const bench = new Bench({ name: "cri", image, createEngine }, stateDir);
    await bench.open();
    await bench.close();
  }

  const shell = (script: string): MachineSpec => ({
    labels: {},
    restart_policy: "never",
    volumes: [{ name: "v", type: "empty_dir", medium: "disk" }],
    containers: [{ name: "a", image, command: ["sh", "-c", script], mounts: [{ volume: "v", path: "/v" }] }],
  });
  const volume = (id: string) => join(backend.stateDir, "machines", id, "engine/volumes/v");

  test("a container that runs over the backend's death keeps its id, and its log has no hole", async () => {
    await backend.start();
    const script = "n=0; while [ ! -e /v/end ]; do n=$((n+1)); echo n=$n; sleep 0.01; done; exit 6";
    await backend.call("PUT", "/v1/machines/m1", shell(script));
    const before = await backend.reaches("m1", "running");
    await backend.kill();
    await backend.start();
    expect((await backend.get("m1")).containers[0]).toMatchObject({
      id: before.containers[0]!.id,
      state: "running",
      restart_count: 0,
    });
    writeFileSync(join(volume("m1"), "end"), "");
    expect((await backend.reaches("m1", "stopped")).containers[0]!.terminated).toMatchObject({ exit_code: 6 });
    const numbers = await backend.logNumbers("m1");
    expect(numbers.length).toBeGreaterThan(1);
    expect(numbers).toEqual(numbers.map((_, index) => index + 1));
  });

  test("however often the backend is killed while it starts machines, no container runs twice", async () => {
    const ids = Array.from({ length: 4 }, (_, index) => `m${index}`);
    const spec = shell("echo run >> /v/runs; while [ ! -e /v/end ]; do sleep 0.05; done");
    const runs = (id: string) => {
      const file = join(volume(id), "runs");
      return existsSync(file) ? readFileSync(file, "utf8") : "";
    };
    for (const [round, last] of ids.entries()) {
      await backend.start();
      for (const id of ids.slice(0, round + 1)) await backend.call("PUT", `/v1/machines/${id}`, spec);
      // Somewhere in the midst of starting: at once, or when the last one has run.
      if (round % 2 === 1) await vi.waitFor(() => expect(runs(last)).toBe("run\n"), { ...PATIENCE, interval: 1 });
      await backend.kill();
    }
    await backend.start();
    // containerd ends what it is starting when its client goes: that is told, and nothing is run a second time.
    const settled = (id: string) =>
      vi.waitFor(async () => {
        const { containers } = await backend.get(id);
        expect([containers[0]!.state, containers[0]!.terminated?.reason]).toBeOneOf([
          ["running", undefined],
          ["terminated", "StartError"],
        ]);
      }, PATIENCE);
    for (const id of ids) {
      await settled(id);
      const { state, restart_count } = (await backend.get(id)).containers[0]!;
      expect(restart_count).toBe(0);
      if (state === "running") await vi.waitFor(() => expect(runs(id)).toBe("run\n"), PATIENCE);
      else expect(runs(id)).toBeOneOf(["", "run\n"]);
    }
  });
}
