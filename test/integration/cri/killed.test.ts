/** A backend of engine cri that is killed and started again: its containerd and its machines go on meanwhile. */
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeEach, expect, onTestFinished, test, vi } from "vitest";
import { CriEngine } from "../../../providers/local/engines/cri/engine.ts";
import { findTool } from "../../../providers/local/host/command.ts";
import { HostNetwork } from "../../../providers/local/network/network.ts";
import type { MachineSpec } from "../../../src/provider/machine.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { systemClock } from "../../../src/util/clock.ts";
import { missingForContainerd } from "../../support/containerd.ts";
import { testNetwork } from "../../support/host.ts";
import { leaveOut } from "../../support/left-out.ts";
import { busyboxImage, missingForImages, startRegistry } from "../../support/registry.ts";
import { KillableBackend, livesThroughTheDeathOf, PATIENCE } from "../backend/killable.ts";
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
    const createEngine = () => new CriEngine({ stateDir, network, images, ...surroundings });
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
    await livesThroughTheDeathOf(backend, shell, { inside: "/v/end", path: join(volume("m1"), "end") });
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
    for (const id of ids) {
      await backend.reaches(id, "running");
      expect((await backend.get(id)).containers[0]!.restart_count).toBe(0);
      await vi.waitFor(() => expect(runs(id)).toBe("run\n"), PATIENCE);
    }
  });

  /** Puts a runc first on the PATH that keeps the start of a container waiting until `isOver` is there. */
  function slowRunc(dir: string, isOver: string): void {
    mkdirSync(dir);
    const runc = findTool("runc")!;
    const state = `${runc} $(echo "$@" | sed 's/ start / state /')`;
    const wait = `while [ ! -e ${isOver} ]; do sleep 0.05; done`;
    const script = `#!/bin/sh
${runc} "$@" || exit
case " $* " in *" start "*) ${state} | grep -q 'container-type": "container"' && ${wait};; esac
exit 0
`;
    writeFileSync(join(dir, "runc"), script, { mode: 0o755 });
    const path = process.env["PATH"];
    onTestFinished(() => void (process.env["PATH"] = path));
    process.env["PATH"] = `${dir}:${path}`;
  }

  test("a container whose start was under way when the backend was killed runs, and is told to run", async () => {
    const isOver = join(backend.stateDir, "../over");
    slowRunc(join(backend.stateDir, "../slow"), isOver);
    await backend.start();
    await backend.call("PUT", "/v1/machines/m1", shell("echo run >> /v/runs; sleep 1000"));
    await vi.waitFor(() => expect(existsSync(join(volume("m1"), "runs"))).toBe(true), PATIENCE);
    await backend.kill();
    await backend.start();
    writeFileSync(isOver, "");
    const { containers } = await backend.reaches("m1", "running");
    expect(containers[0]!.restart_count).toBe(0);
    expect(readFileSync(join(volume("m1"), "runs"), "utf8")).toBe("run\n");
  });
}
