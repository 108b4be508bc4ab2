/**
 * A backend in a container, as the chart's: process 1 of its process namespace, with mounts of its own. Its engine's
 * runtime is in there with it, and ends with it; what is kept on disk, and the network, are there for the next one.
 */
import { mkdtempSync, readdirSync, readlinkSync, realpathSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, expect, onTestFinished, test, vi } from "vitest";
import { findTool } from "../../../providers/local/host/command.ts";
import { mountsBelow } from "../../../providers/local/host/mounts.ts";
import { allProcesses, isAlive } from "../../../providers/local/host/proc.ts";
import { HostNetwork } from "../../../providers/local/network/network.ts";
import type { MachineSpec } from "../../../src/provider/machine.ts";
import { engineOnThisHost, removeEngine } from "../../support/engines.ts";
import { testNetwork } from "../../support/host.ts";
import { leaveOut } from "../../support/left-out.ts";
import { busyboxImage, missingForImages, startRegistry } from "../../support/registry.ts";
import { KillableBackend, PATIENCE } from "../backend/killable.ts";

const CONTAINED = ["unshare", "--pid", "--mount", "--fork", "--kill-child=SIGKILL", "--mount-proc"];
const engines = ["cri", "oci"] as const;

const missing = [
  ...(await Promise.all(engines.map(async (name) => (await engineOnThisHost(name)).missing))).flat(),
  ...[missingForImages() ?? []].flat(),
  ...(findTool("unshare") === undefined ? ["unshare is not on the PATH"] : []),
];

/** Where a process has its own number. */
const pidsOf = (pid: number | "self"): string => readlinkSync(`/proc/${pid}/ns/pid`);

/** All processes of the backend's container: below this one, and not in its process namespace. */
async function contained(): Promise<{ pid: number; startTime: string }[]> {
  const all = await allProcesses();
  const below = (parent: number): typeof all => {
    const children = all.filter(({ ppid }) => ppid === parent);
    return children.flatMap((child) => [child, ...below(child.pid)]);
  };
  return below(process.pid).filter(({ pid }) => pidsOf(pid) !== pidsOf("self"));
}

if (missing.length > 0) leaveOut("a backend in a container", missing);
else {
  const registry = await startRegistry();
  await registry.push("t/busybox:1", await busyboxImage());
  const image = `${registry.host}/t/busybox:1`;
  afterAll(() => registry.stop());

  const machine = (restart: "always" | "never"): MachineSpec => ({
    labels: {},
    restart_policy: restart,
    containers: [{ name: "a", image, command: ["sleep", "100000"] }],
  });

  function makeBackend(type: (typeof engines)[number]) {
    const { dir: _dir, ...network } = testNetwork("");
    const dir = realpathSync(mkdtempSync(join(tmpdir(), "vmlet-kill-")));
    const config = { engine: { type, network, images: { insecureRegistries: [registry.host] } } };
    const backend = new KillableBackend(dir, { ...config, persistentVolumes: false }, CONTAINED);
    onTestFinished(async () => {
      await backend.kill();
      await removeEngine(type, { stateDir: backend.stateDir, network });
      await new HostNetwork({ dir: "/nonexistent/network", ...network }).remove();
      rmSync(dir, { recursive: true, force: true });
    });
    return { backend, links: () => readdirSync(`/sys/class/net/${network.bridge}/brif`) };
  }

  test.each(engines)(
    "nothing of a contained backend runs on without it, and the next one sees it: %s",
    async (type) => {
      const { backend, links } = makeBackend(type);
      await backend.start();
      await backend.call("PUT", "/v1/machines/once", machine("never"));
      await backend.call("PUT", "/v1/machines/again", machine("always"));
      for (const id of ["once", "again"]) await backend.reaches(id, "running");
      const before = await contained();
      expect(before.length).toBeGreaterThan(4);

      await backend.kill();
      await vi.waitFor(
        () => expect(before.filter(({ pid, startTime }) => isAlive(pid, startTime))).toEqual([]),
        PATIENCE,
      );
      expect(await mountsBelow(backend.stateDir)).toEqual([]);

      await backend.start();
      const lost = await vi.waitFor(async () => {
        const found = await backend.get("once");
        expect(["failed", "stopped"]).toContain(found.state);
        return found;
      }, PATIENCE);
      expect(lost.containers[0]!.terminated).toMatchObject({ exit_code: 137, reason: "ContainerStatusUnknown" });
      await vi.waitFor(async () => {
        const { containers } = await backend.get("again");
        expect(containers[0]).toMatchObject({ state: "running", restart_count: 1 });
      }, PATIENCE);

      for (const id of ["once", "again"]) await backend.call("DELETE", `/v1/machines/${id}?force=true`);
      for (const id of ["once", "again"]) await backend.reaches(id, "deleted");
      expect(links()).toEqual([]);
    },
  );
}
