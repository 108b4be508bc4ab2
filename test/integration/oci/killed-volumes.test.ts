/** A backend that is killed at any instant finds every volume whole, and attached to one machine at most. */
import { mkdtempSync, readFileSync, realpathSync, rmSync, statSync } from "node:fs";
import { execFileSync } from "node:child_process";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { afterAll, beforeEach, expect, onTestFinished, test, vi } from "vitest";
import { OciEngine } from "../../../providers/local/engines/oci/engine.ts";
import { HostNetwork } from "../../../providers/local/network/network.ts";
import { checkLoopVolumes, hasLoopVolumes } from "../../../providers/local/volumes/loop-files.ts";
import type { MachineSpec } from "../../../src/provider/machine.ts";
import { LABEL_NAMESPACE } from "../../../src/provider/owner.ts";
import type { PersistentVolume } from "../../../src/provider/volume.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { systemClock } from "../../../src/util/clock.ts";
import { removeEngine } from "../../support/engines.ts";
import { testNetwork } from "../../support/host.ts";
import { leaveOut } from "../../support/left-out.ts";
import { busyboxImage, missingForImages, startRegistry } from "../../support/registry.ts";
import { KillableBackend, PATIENCE } from "../backend/killable.ts";

const MIB = 2 ** 20;
const { dir: _dir, ...network } = testNetwork("");
const engine = new OciEngine({ stateDir: "/nonexistent", clock: systemClock, logger: silentLogger, network });
const missing = [
  ...(await engine.check()).filter(({ fatal }) => fatal).map(({ problem }) => problem),
  ...[missingForImages() ?? []].flat(),
  ...(hasLoopVolumes() ? [] : checkLoopVolumes().map(({ problem }) => problem)),
];

if (missing.length > 0) leaveOut("volumes of a killed backend", missing);
else {
  const registry = await startRegistry();
  await registry.push("t/busybox:1", await busyboxImage());
  const image = `${registry.host}/t/busybox:1`;
  afterAll(() => registry.stop());

  let backend: KillableBackend;
  beforeEach(() => {
    const dir = realpathSync(mkdtempSync(join(tmpdir(), "vmlet-kill-")));
    const made = new KillableBackend(dir, {
      engine: {
        type: "oci",
        network,
        images: { insecureRegistries: [registry.host] },
        host: { namespaces: ["owner"] },
      },
    });
    backend = made;
    onTestFinished(async () => {
      await made.kill();
      await removeEngine("oci", { stateDir: made.stateDir, network });
      for (const device of devices()) execFileSync("losetup", ["--detach", device]);
      await new HostNetwork({ dir: "/nonexistent/network", ...network }).remove();
      rmSync(dir, { recursive: true, force: true });
    });
  });

  const machine = (script: string, volume = "d1"): MachineSpec => ({
    labels: {},
    restart_policy: "never",
    volumes: [{ name: "v", type: "persistent", volume }],
    containers: [{ name: "a", image, command: ["sh", "-c", script], mounts: [{ volume: "v", path: "/v" }] }],
  });
  const makeVolume = (id = "d1") =>
    backend.call("PUT", `/v1/volumes/${id}`, { labels: {}, size_bytes: 32 * MIB, mode: "filesystem" });
  const put = (id: string, script: string) => backend.call("PUT", `/v1/machines/${id}`, machine(script));
  const volume = async (id = "d1") => (await backend.call("GET", `/v1/volumes/${id}`)).body as PersistentVolume;

  /** Loop devices of this backend's volumes, and where they are mounted. */
  const devices = () =>
    execFileSync("losetup", ["--list", "--noheadings", "--raw", "--output", "NAME,BACK-FILE"])
      .toString()
      .split("\n")
      .filter((line) => line.includes(backend.stateDir))
      .map((line) => line.split(" ")[0]!);
  const mounts = () =>
    readFileSync("/proc/self/mountinfo", "utf8")
      .split("\n")
      .filter((line) => line.includes(`${backend.stateDir}/volumes/`));

  test("a volume stays its machine's over the backend's death, and the next one's when that is deleted", async () => {
    await backend.start();
    expect((await makeVolume()).status).toBeLessThan(300);
    await put("m1", "n=0; while true; do n=$((n+1)); echo $n > /v/n; sync; sleep 0.01; done");
    await backend.reaches("m1", "running");
    await backend.kill();
    await backend.start();
    expect((await volume()).attachments).toMatchObject([{ machine: "m1" }]);
    expect(await put("m2", "cat /v/n")).toMatchObject({ status: 409, body: { error: { code: "in_use" } } });
    await backend.call("DELETE", "/v1/machines/m1?force=true");
    await backend.reaches("m1", "deleted");
    expect([devices(), mounts()]).toEqual([[], []]);
    expect((await put("m2", "cat /v/n")).status).toBeLessThan(300);
    const { containers } = await backend.reaches("m2", "stopped");
    expect(containers[0]!.terminated).toMatchObject({ exit_code: 0 });
  });

  test("however often the backend is killed, a volume is attached once, and each machine sees what all before it wrote", async () => {
    const rounds = 8;
    await backend.start();
    await makeVolume();
    for (let round = 0; round < rounds; round++) {
      const id = `m${round}`;
      // Two at a time would both see the other's mark.
      const script = `[ -e /v/taken ] && echo overlap >> /v/bad; touch /v/taken; echo ${id} >> /v/all; sync; rm /v/taken`;
      expect((await put(id, script)).status).toBeLessThan(300);
      // Somewhere in the midst: at once, when there is a device, when it is mounted, when it is over and still attached.
      if (round % 4 === 1) await vi.waitFor(() => expect(devices()).toHaveLength(1), { ...PATIENCE, interval: 1 });
      if (round % 4 === 2) await vi.waitFor(() => expect(mounts()).toHaveLength(1), { ...PATIENCE, interval: 1 });
      if (round % 4 === 3) {
        await vi.waitFor(() => expect(mounts()).toHaveLength(1), { ...PATIENCE, interval: 1 });
        await vi.waitFor(() => expect(mounts()).toHaveLength(0), { ...PATIENCE, interval: 1 });
      }
      await backend.kill();
      expect(devices().length).toBeLessThanOrEqual(1);
      await backend.start();
      await backend.reaches(id, "stopped");
      await vi.waitFor(() => expect(devices()).toEqual([]), PATIENCE);
    }
    await put("last", "cat /v/all | sed 's/m/n=/'; [ ! -e /v/bad ]");
    const { containers } = await backend.reaches("last", "stopped");
    expect(containers[0]!.terminated).toMatchObject({ exit_code: 0 });
    expect(await backend.logNumbers("last")).toEqual(Array.from({ length: rounds }, (_, round) => round));
  });

  test("a machine that has the host's folders keeps no volume on it that another gives back", async () => {
    const { stateDir } = backend;
    const folder = dirname(stateDir);
    // As the root of most hosts is.
    execFileSync("mount", ["--bind", folder, folder]);
    onTestFinished(() => void execFileSync("umount", ["--lazy", folder]));
    execFileSync("mount", ["--make-shared", folder]);
    await backend.start();
    await makeVolume();
    await put("m1", "sleep 1000");
    await backend.reaches("m1", "running");
    const collector = machine("sleep 1000");
    collector.labels = { [LABEL_NAMESPACE]: "owner" };
    collector.volumes = [{ name: "v", type: "host", path: folder }];
    collector.host = { network: true };
    expect((await backend.call("PUT", "/v1/machines/collector", collector)).status).toBeLessThan(300);
    await backend.reaches("collector", "running");
    await backend.call("DELETE", "/v1/machines/m1?force=true");
    await backend.reaches("m1", "deleted");
    expect([devices(), mounts()]).toEqual([[], []]);
  });

  test("a device that a killed backend has left attached for nobody is taken away by the next one", async () => {
    await backend.start();
    await makeVolume();
    await backend.kill();
    execFileSync("losetup", ["--find", join(backend.stateDir, "volumes/d1/disk.img")]);
    await backend.start();
    await vi.waitFor(() => expect(devices()).toEqual([]), PATIENCE);
  });

  test("however often the backend is killed while it makes a volume, it is made once, of its size", async () => {
    for (let round = 0; round < 4; round++) {
      await backend.start();
      const made = makeVolume("d2").catch(() => undefined);
      await new Promise((resolve) => setImmediate(resolve));
      if (round === 3) await made;
      await backend.kill();
      await made;
    }
    await backend.start();
    expect((await makeVolume("d2")).status).toBeLessThan(300);
    expect(await volume("d2")).toMatchObject({ state: "available", size_bytes: 32 * MIB });
    expect(statSync(join(backend.stateDir, "volumes/d2/disk.img")).size).toBe(32 * MIB);
    expect((await backend.call("DELETE", "/v1/volumes/d2")).status).toBeLessThan(300);
  });
}
