/**
 * Device plugins with real containers: what a container sees of a device, and Kubernetes' sample plugin and the backend
 * killed at each step. For engines whose containers are this host's.
 */
import type { ChildProcess } from "node:child_process";
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test, vi } from "vitest";
import type { Machine, MachineSpec } from "../../../src/provider/machine.ts";
import type { ProviderCapacity } from "../../../src/provider/provider.ts";
import { buildSampleDevicePlugin } from "../../e2e/harness/build.ts";
import { GPU, killPlugin, registerPlugin, SAMPLE, startSamplePlugin, TestPlugin } from "../../support/device-plugin.ts";
import { engineOnThisHost, removeEngine } from "../../support/engines.ts";
import { testNetwork } from "../../support/host.ts";
import { leaveOut } from "../../support/left-out.ts";
import { busyboxImage, missingForImages, startRegistry, type TestRegistry } from "../../support/registry.ts";
import { KillableBackend, PATIENCE } from "./killable.ts";

/** A plugin looks for a new socket ten seconds after the backend has begun again. */
const RETURN = { timeout: 60_000, interval: 50 };

export async function devicePluginTests(type: "oci" | "cri"): Promise<void> {
  const lacks = [(await engineOnThisHost(type)).missing, missingForImages() ?? []].flat();
  if (lacks.length > 0) return leaveOut(`device plugins on engine ${type}`, lacks);
  const { dir: _dir, ...network } = testNetwork("");

  describe(`device plugins on engine ${type}`, () => {
    let registry: TestRegistry;
    let image: string;
    let dir: string;
    let backend: KillableBackend;
    let sample: ChildProcess | undefined;
    const kubeletDir = () => join(dir, "kubelet");
    const kubelet = () => join(kubeletDir(), "device-plugins/kubelet.sock");

    beforeAll(async () => {
      registry = await startRegistry();
      await registry.push("t/busybox:1", await busyboxImage());
      image = `${registry.host}/t/busybox:1`;
    });
    beforeEach(async () => {
      dir = mkdtempSync(join(tmpdir(), "vmlet-dp-"));
      const images = { insecureRegistries: [registry.host] };
      backend = new KillableBackend(dir, { engine: { type, network, images, plugins: { directory: kubeletDir() } } });
      await backend.start();
    });
    afterEach(async () => {
      if (sample !== undefined) await killPlugin(sample);
      sample = undefined;
      await backend.kill();
      await removeEngine(type, { stateDir: backend.stateDir, network });
      rmSync(dir, { recursive: true, force: true });
    });
    afterAll(() => registry.stop());

    const asking = (resource: string, count: number, script = "sleep 1000"): MachineSpec => ({
      labels: {},
      restart_policy: "always",
      containers: [
        {
          name: "a",
          image,
          command: ["sh", "-c", script],
          resources: { limits: { extended: [{ name: resource, count }] } },
        },
      ],
    });
    const put = (id: string, spec: MachineSpec) => backend.call("PUT", `/v1/machines/${id}`, spec);
    const ids = ({ containers }: Machine) => (containers[0]!.devices ?? []).map(({ id }) => id);
    const counted = async (healthy: number, total: number, resource: string) =>
      await vi.waitFor(async () => {
        const { allocatable, total: all } = (await backend.call("GET", "/v1/capacity")).body as ProviderCapacity;
        const count = (list: typeof allocatable.extended) => list?.find(({ name }) => name === resource)?.count;
        expect([count(allocatable.extended), count(all?.extended)]).toEqual([healthy, total]);
      }, RETURN);
    const startSample = async () => {
      sample = startSamplePlugin(await buildSampleDevicePlugin(), kubeletDir());
      await counted(2, 2, SAMPLE);
    };

    test("a container has the node, the mount and the variables that the plugin gives, and another has none", async () => {
      const shown = join(dir, "shown");
      writeFileSync(shown, "of the host");
      const plugin = new TestPlugin((given) => ({
        envs: { GPUS: given.join(","), MINE: "the plugin's" },
        devices: [{ containerPath: "/dev/given", hostPath: "/dev/zero", permissions: "rw" }],
        mounts: [{ containerPath: "/shown", hostPath: shown, readOnly: true }],
      }));
      await plugin.listen(join(kubeletDir(), "device-plugins/gpu.sock"));
      await registerPlugin(kubelet());
      await counted(2, 2, GPU);
      const see =
        "echo $GPUS-$MINE; cat /shown; head -c 3 /dev/given | wc -c; echo no > /shown; ls -l /dev/given | cut -c1";
      const spec = asking(GPU, 1, `${see}; sleep 1000`);
      spec.containers[0]!.env = [{ name: "MINE", value: "the container's" }];
      spec.containers.push({
        name: "b",
        image,
        command: ["sh", "-c", "echo -$GPUS-; ls /dev/given /shown; sleep 1000"],
      });
      await put("m1", spec);
      await backend.reaches("m1", "running");
      const log = async (name: string) => (await backend.call("GET", `/v1/machines/m1/containers/${name}/logs`)).text;
      await vi.waitFor(async () => {
        for (const said of ["g0-the container's", "of the host3", "F c\n", "Read-only"])
          expect(await log("a")).toContain(said);
        for (const said of ["F --\n", "/dev/given: No such", "/shown: No such"]) expect(await log("b")).toContain(said);
      }, PATIENCE);
      plugin.die();
    });

    test("Kubernetes' sample plugin, and the backend, are killed at each step, and nothing is given twice", async () => {
      await startSample();
      await put("m1", asking(SAMPLE, 1, "ls /tmp; sleep 1000"));
      const [first] = ids(await backend.reaches("m1", "running"));
      expect((await backend.call("GET", "/v1/machines/m1/containers/a/logs")).text).toContain(first);
      await put("greedy", asking(SAMPLE, 2));
      expect((await backend.reaches("greedy", "failed")).message).toContain("Requested: 2, Available: 1");
      // The backend, just after it was asked: the machine is given what nobody has by the next one.
      await put("m2", asking(SAMPLE, 1));
      await backend.kill();
      await backend.start();
      await counted(2, 2, SAMPLE);
      const m2 = await backend.reaches("m2", "running");
      const m1 = await backend.get("m1");
      expect([ids(m1), m1.containers[0]!.restart_count, [...ids(m1), ...ids(m2)].toSorted()]).toEqual([
        [first],
        0,
        ["Dev-1", "Dev-2"],
      ]);
      // The plugin: what runs goes on, and nobody new is given anything.
      await killPlugin(sample!);
      await counted(0, 2, SAMPLE);
      await put("late", asking(SAMPLE, 1));
      expect(["failed", "pending"]).toContain((await backend.get("late")).state);
      expect((await backend.get("m1")).containers[0]).toMatchObject({
        state: "running",
        devices: [{ health: "unknown" }],
      });
      // Both: a third one finds all given away, and one that is over gives its own back.
      await backend.kill();
      await backend.start();
      await startSample();
      await put("m3", asking(SAMPLE, 1));
      expect((await backend.reaches("m3", "failed")).message).toContain("Requested: 1, Available: 0");
      await backend.call("POST", "/v1/machines/m1/stop", { grace_seconds: 0 });
      await backend.reaches("m1", "stopped");
      await put("m4", asking(SAMPLE, 1));
      expect(ids(await backend.reaches("m4", "running"))).toEqual([first]);
    }, 240_000);

    test("the backend is killed in the midst of giving devices, and each device has one machine at most", async () => {
      const plugin = new TestPlugin();
      plugin.devices = ["g0", "g1", "g2"];
      const socket = join(kubeletDir(), "plugins_registry/gpu.sock");
      await plugin.listen(socket);
      await counted(3, 3, GPU);
      const machines = Array.from({ length: 3 }, (_, index) => `m${index}`);
      for (const [round, id] of machines.entries()) {
        await put(id, asking(GPU, 1));
        const file = () => readdirSync(join(backend.stateDir, "machines", id)).filter((name) => name.endsWith(".json"));
        const isWritten = () =>
          file().some((name) => readFileSync(join(backend.stateDir, "machines", id, name), "utf8").includes(GPU));
        // At once, as soon as it is on the disk, or when the machine runs.
        if (round === 1) await vi.waitFor(() => expect(isWritten()).toBe(true), { ...PATIENCE, interval: 1 });
        if (round === 2) await backend.reaches(id, "running");
        await backend.kill();
        await backend.start();
      }
      const all = await Promise.all(machines.map(async (id) => ids(await backend.reaches(id, "running"))));
      expect(all.flat().toSorted()).toEqual(["g0", "g1", "g2"]);
      plugin.die();
    });
  });
}
