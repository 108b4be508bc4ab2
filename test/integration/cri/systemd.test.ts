/** Engine cri with a containerd of the host's, whose control groups are systemd's, as kubeadm sets both up. */
import { type ChildProcess, execFileSync, spawn } from "node:child_process";
import { existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, test, vi } from "vitest";
import { cgroupVersion } from "../../../providers/local/bundle/cgroup.ts";
import { slicePath } from "../../../providers/local/engines/cri/machine-groups.ts";
import { findTool } from "../../../providers/local/host/command.ts";
import { sliceName } from "../../../providers/local/engines/cri/machine-groups.ts";
import { machineHash } from "../../../providers/local/host/machine-hash.ts";
import type { ContainerSpec, MachineSpec } from "../../../src/provider/machine.ts";
import { missingForContainerd } from "../../support/containerd.ts";
import { testNetwork } from "../../support/host.ts";
import { leaveOut } from "../../support/left-out.ts";
import { busyboxImage, missingForImages, startRegistry } from "../../support/registry.ts";
import { missingForSystemd, TestSystemd } from "../../support/systemd.ts";
import { BACKEND_PROGRAM, KillableBackend, PATIENCE } from "../backend/killable.ts";

const missing = [(await missingForContainerd()) ?? [], missingForImages() ?? [], missingForSystemd() ?? []].flat();

if (missing.length > 0) leaveOut("engine cri on control groups of systemd's", missing);
else
  describe("engine cri on control groups of systemd's", async () => {
    const dir = mkdtempSync(join(tmpdir(), "vmlet-systemd-cri-"));
    const systemd = new TestSystemd();
    const registry = await startRegistry();
    const image = `${registry.host}/t/busybox:1`;
    const { bridge, cidr } = testNetwork("");
    const socket = join(dir, "containerd.sock");
    let containerd: ChildProcess | undefined;
    let backend: KillableBackend;

    /** As a host's: nothing in it knows of vmlet. */
    function configure(): string {
      mkdirSync(join(dir, "cni"));
      const ipam = { type: "host-local", dataDir: join(dir, "leases"), ranges: [[{ subnet: cidr }]] };
      const network = { cniVersion: "1.0.0", name: "t", plugins: [{ type: "bridge", bridge, isGateway: true, ipam }] };
      writeFileSync(join(dir, "cni/10-t.conflist"), JSON.stringify(network));
      const file = join(dir, "config.toml");
      writeFileSync(
        file,
        `version = 3
root = "${dir}/root"
state = "/run/t-containerd"
disabled_plugins = ["io.containerd.nri.v1.nri"]
[grpc]
address = "${socket}"
[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "${registry.host}/t/pause:1"
[plugins."io.containerd.cri.v1.runtime"]
restrict_oom_score_adj = true
[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = ["/usr/lib/cni", "/opt/cni/bin"]
conf_dir = "${dir}/cni"
use_internal_loopback = true
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
SystemdCgroup = true
`,
      );
      return file;
    }

    beforeAll(async () => {
      await registry.push("t/busybox:1", await busyboxImage());
      await registry.push("t/pause:1", await busyboxImage([], { Cmd: ["/bin/sleep", "1000000"] }));
      await systemd.start();
      const [program, ...args] = [...systemd.within, findTool("containerd")!, "--config", configure()];
      containerd = spawn(program, args, { stdio: "ignore" });
      await vi.waitFor(() => expect(existsSync(socket)).toBe(true), PATIENCE);
      backend = new KillableBackend(dir, { engine: { type: "cri", socket } }, systemd.within);
      await backend.start();
    }, 60_000);
    afterAll(async () => {
      await backend.kill();
      await systemd.stop();
      containerd?.kill("SIGKILL");
      await registry.stop();
      execFileSync("sh", ["-c", `ip link delete ${bridge} 2>/dev/null; umount -R ${dir}/* 2>/dev/null; true`]);
      rmSync(dir, { recursive: true, force: true });
    }, 60_000);

    const slices = () => `vmlet-${machineHash(backend.stateDir)}`;
    const groupOf = (tree: string, slice: string) =>
      join("/sys/fs/cgroup", cgroupVersion() === 1 ? tree : "", systemd.group, slicePath(slice));
    const sliceOf = (id: string) => `${slices()}-${sliceName(id)}.slice`;
    const machine = (script: string, more: Partial<ContainerSpec> = {}): MachineSpec => ({
      labels: {},
      restart_policy: "never",
      resources: { limits: { memory_bytes: 64 << 20 } },
      containers: [{ name: "a", image, command: ["sh", "-c", script], ...more }],
    });
    async function running(id: string, spec: MachineSpec): Promise<void> {
      expect(await backend.call("PUT", `/v1/machines/${id}`, spec)).toMatchObject({ status: 200 });
      await backend.reaches(id, "running");
    }
    const memoryLimit = (slice: string) =>
      Number(
        readFileSync(
          join(groupOf("memory", slice), cgroupVersion() === 1 ? "memory.limit_in_bytes" : "memory.max"),
          "latin1",
        ),
      );

    test("a machine is a slice of systemd's with its limits, and its containers are scopes in it", async () => {
      await running("m1", machine("sleep 1000"));
      expect(systemd.run("systemctl", ["show", "--property=ActiveState", "--value", sliceOf("m1")])).toBe("active\n");
      expect(memoryLimit(sliceOf("m1"))).toBe(64 << 20);
      const scopes = readdirSync(groupOf("pids", sliceOf("m1"))).filter((name) => name.endsWith(".scope"));
      // Of the container, and of the sandbox.
      expect(scopes).toEqual([
        expect.stringMatching(/^cri-containerd-[0-9a-f]{64}\.scope$/),
        expect.stringMatching(/^cri-containerd-[0-9a-f]{64}\.scope$/),
      ]);
    });

    test("all machines together have no more than the host can spare, by a limit that systemd knows", async () => {
      const property = cgroupVersion() === 1 ? "MemoryLimit" : "MemoryMax";
      const known = systemd.run("systemctl", ["show", `--property=${property}`, "--value", `${slices()}.slice`]);
      expect(Number(known)).toBeGreaterThan(0);
      // The kernel counts whole pages.
      expect(Number(known) - memoryLimit(`${slices()}.slice`)).toBeLessThan(4096);
    });

    test("a stop signal of a container's own reaches it", async () => {
      const script = "trap 'exit 7' USR1; while :; do sleep 0.05; done";
      await running("m2", machine(script, { stop: { signal: "SIGUSR1" } }));
      expect(await backend.call("POST", "/v1/machines/m2/stop", { grace_seconds: 60 })).toMatchObject({ status: 202 });
      const { containers } = await backend.reaches("m2", "stopped");
      expect(containers[0]!.terminated).toMatchObject({ exit_code: 7 });
    });

    test("a machine runs on when the backend is killed, and the next one has the same slices", async () => {
      await running("m3", machine("sleep 1000"));
      await backend.kill();
      await backend.start();
      const { containers } = await backend.reaches("m3", "running");
      expect(containers[0]!.restart_count).toBe(0);
      expect(memoryLimit(sliceOf("m3"))).toBe(64 << 20);
    });

    const cli = (...args: string[]) =>
      systemd.run(process.execPath, [BACKEND_PROGRAM, "backend", "--config", backend.configFile, ...args]);
    const answers = () =>
      vi.waitFor(async () => expect((await backend.call("GET", "/v1/info")).status).toBe(200), PATIENCE);

    test("backend check says what the host's runtime does by itself, and what machines may have on it", () => {
      const said = cli("check");
      expect(said).toContain(`the runtime at ${socket} pulls images by itself`);
      expect(said).toContain("engine cri can run here; capabilities: ");
    });

    test("installed as a service, the backend is restarted and removed without its machines' noticing", async () => {
      await backend.kill();
      expect(cli("install")).toContain("ran: systemctl restart vmlet-backend.service");
      await answers();
      await running("m5", machine("sleep 1000"));
      expect(cli("install")).not.toMatch(/wrote|replaced|restart/);
      const { id, started_at } = (await backend.get("m5")).containers[0]!;
      systemd.run("systemctl", ["restart", "vmlet-backend"]);
      await answers();
      const { containers } = await backend.reaches("m5", "running");
      expect(containers[0]).toMatchObject({ id, started_at, restart_count: 0 });
      expect(cli("remove")).toContain("removed: /etc/systemd/system/vmlet-backend.service");
      expect(() => systemd.run("systemctl", ["cat", "vmlet-backend"])).toThrow("No files found");
      expect(systemd.run("systemctl", ["show", "--property=ActiveState", "--value", sliceOf("m5")])).toBe("active\n");
      // As the others have it.
      await backend.start();
    });

    test("a machine that is deleted leaves no slice", async () => {
      await running("m4", machine("sleep 1000"));
      await backend.call("DELETE", "/v1/machines/m4?force=true");
      await vi.waitFor(() => expect(existsSync(groupOf("pids", sliceOf("m4")))).toBe(false), PATIENCE);
      expect(systemd.run("systemctl", ["list-units", "--all", "--plain", "--no-legend", sliceOf("m4")])).toBe("");
    });
  });
