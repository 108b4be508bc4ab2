/** `vmlet backend` with engine vm as a process of its own, with a warm pool, killed with SIGKILL and started again. */
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test, vi } from "vitest";
import { VmEngine } from "../../../providers/local/engines/vm/engine.ts";
import { HostNetwork } from "../../../providers/local/network/network.ts";
import type { Machine } from "../../../src/provider/machine.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { systemClock } from "../../../src/util/clock.ts";
import { startBackend, type BackendProcess } from "../../e2e/harness/agent.ts";
import { createSandbox } from "../../e2e/harness/processes.ts";
import { testNetwork } from "../../support/host.ts";
import { leaveOut } from "../../support/left-out.ts";
import { busyboxImage, missingForImages, startRegistry, type TestRegistry } from "../../support/registry.ts";

const PATIENCE = { timeout: 150_000, interval: 50 };
const { dir: _dir, ...network } = testNetwork("");
const probe = new VmEngine({ stateDir: "/nonexistent", clock: systemClock, logger: silentLogger });
const problems = (await probe.check()).filter(({ fatal }) => fatal).map(({ problem }) => problem);
const missing = [...problems, ...[missingForImages() ?? []].flat()];

if (missing.length > 0) leaveOut("a killed backend with engine vm", missing);
else {
  let sandbox: Awaited<ReturnType<typeof createSandbox>>;
  let backend: BackendProcess;
  let registry: TestRegistry;
  let id: string;
  const vmsDir = () => join(sandbox.dir, "backend/vm/v");
  /** Key of each VM whose QEMU runs, by reading /proc. */
  const running = () =>
    readdirSync("/proc").flatMap((pid) => {
      if (!/^\d+$/.test(pid)) return [];
      try {
        const args = readFileSync(`/proc/${pid}/cmdline`, "latin1");
        const at = args.startsWith("/") && args.includes("qemu-system") ? args.indexOf(`unix:${vmsDir()}/`) : -1;
        return at < 0 ? [] : [args.slice(at + `unix:${vmsDir()}/`.length).split("/")[0]!];
      } catch {
        return []; // it has ended
      }
    });
  const machineKeys = () =>
    readdirSync(join(sandbox.dir, "backend/vm/machines")).map(
      (name) =>
        (JSON.parse(readFileSync(join(sandbox.dir, "backend/vm/machines", name), "utf8")) as { key: string }).key,
    );
  const idle = () => running().filter((key) => !machineKeys().includes(key));
  const finished = (key: string) => readdirSync(join(vmsDir(), key)).includes("vm.json");
  const get = async () => (await backend.client.get(`/v1/machines/${id}`)) as Machine;
  const reaches = (state: string) =>
    vi.waitFor(async () => {
      const machine = await get();
      expect(machine.state).toBe(state);
      return machine;
    }, PATIENCE);

  beforeAll(async () => {
    registry = await startRegistry();
    await registry.push("t/busybox:1", await busyboxImage());
    sandbox = await createSandbox("vm-kill");
    backend = await startBackend({
      sandbox,
      engine: { type: "vm", network, warmPool: 1, images: { insecureRegistries: [registry.host] } },
    });
  });
  afterAll(async () => {
    await sandbox.close();
    await registry.stop();
    await new HostNetwork({ dir: "/nonexistent/network", ...network }).remove();
  });

  test("a machine moves into a VM that waited; a killed backend finds it again, and replaces those that wait", async () => {
    const script = "hostname; trap 'exit 5' TERM; while :; do sleep 0.1; done";
    const container = { name: "a", image: `${registry.host}/t/busybox:1`, command: ["sh", "-c", script] };
    const spec = { labels: {}, restart_policy: "never", hostname: "moved-in", containers: [container] };
    // A VM of the pool that is not quite ready yet is not given out: then another machine tries.
    let tries = 0;
    let waiting: string[];
    for (;;) {
      waiting = await vi.waitFor(() => {
        const keys = idle().filter(finished);
        expect(keys).not.toEqual([]);
        return keys;
      }, PATIENCE);
      id = `m${++tries}`;
      await backend.client.update(`/v1/machines/${id}`, spec);
      await reaches("running");
      if (waiting.includes(machineKeys()[0]!)) break;
      await backend.client.delete(`/v1/machines/${id}?force=true`);
      await vi.waitFor(() => expect(machineKeys()).toEqual([]), PATIENCE);
    }
    const before = await get();
    const [key] = machineKeys();

    await backend.kill("SIGKILL");
    expect(running()).toContain(key);
    const left = idle();
    await backend.start();
    const { containers } = await reaches("running");
    expect(containers[0]).toMatchObject({ id: before.containers[0]!.id, restart_count: 0 });
    expect(running().filter((key) => left.includes(key))).toEqual([]);
    expect(await backend.client.text(`/v1/machines/${id}/containers/a/logs`)).toContain("moved-in");

    await backend.client.create(`/v1/machines/${id}/stop`, { grace_seconds: 30 });
    expect((await reaches("stopped")).containers[0]!.terminated).toMatchObject({ exit_code: 5 });
    await backend.client.delete(`/v1/machines/${id}`);
    await vi.waitFor(() => expect(machineKeys()).toEqual([]), PATIENCE);
    await backend.stop();
    expect(running()).toEqual([]);
    expect(readdirSync(vmsDir())).toEqual([]);
  });
}
