import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, expect, test } from "vitest";
import { OciEngine } from "../../../providers/local/engines/oci/engine.ts";
import { Cgroup } from "../../../providers/local/bundle/cgroup.ts";
import { machineHash } from "../../../providers/local/host/machine-hash.ts";
import { run } from "../../../providers/local/host/command.ts";
import { HostNetwork } from "../../../providers/local/network/network.ts";
import { checkLoopVolumes, hasLoopVolumes } from "../../../providers/local/volumes/loop-files.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { systemClock } from "../../../src/util/clock.ts";
import { testNetwork } from "../../support/host.ts";
import { leaveOut } from "../../support/left-out.ts";
import { missingForImages } from "../../support/registry.ts";
import { containerTests, pushImages } from "../backend/containers.ts";
import { volumeTests } from "../backend/volumes.ts";
import { backendSuite, text } from "../backend/suite.ts";

const createEngine = (stateDir: string, insecureRegistries: string[] = []) =>
  new OciEngine({
    stateDir,
    clock: systemClock,
    logger: silentLogger,
    network,
    allowPrivileged: true,
    images: { insecureRegistries },
  });
const { dir: _dir, ...network } = testNetwork("");
const problems = (await createEngine("/nonexistent").check())
  .filter(({ fatal }) => fatal)
  .map(({ problem }) => problem);
const missing = [...problems, ...[missingForImages() ?? []].flat()];

if (missing.length > 0) {
  leaveOut("engine oci", missing);
} else {
  const images = await pushImages();
  afterAll(async () => {
    await images.registry.stop();
    await new HostNetwork({ dir: "/nonexistent/network", ...network }).remove();
  });

  const create = (stateDir: string) => createEngine(stateDir, [images.registry.host]);
  backendSuite({ name: "oci", image: images.image, createEngine: create, ownProcesses: true }, (bench) => {
    containerTests(bench, images);
    if (hasLoopVolumes()) volumeTests(bench);
    else
      leaveOut(
        `volumes of engine oci`,
        checkLoopVolumes().map(({ problem }) => problem),
      );

    const output = async (script: string, machine: object) => {
      const id = await bench().create({ containers: [bench().shell("a", script)], ...machine });
      await bench().terminated(id, "a");
      return await bench().log(id, "a");
    };

    test("with a shared process namespace containers see each other's processes", async () => {
      const id = await bench().create({
        security: { share_process_namespace: true },
        containers: [
          bench().shell("a", "exec sleep 4321"),
          bench().shell(
            "b",
            "while ! ps | grep -q '[s]leep 4321'; do sleep 0.1; done; ps | head -2 | tail -1 | grep -o '/pause'",
          ),
        ],
      });
      expect((await bench().terminated(id, "b")).exit_code).toBe(0);
      await bench().provider.deletePod(id, { force: true, signal: bench().signal });
    });

    test("orphans in a shared process namespace are reaped", async () => {
      const script = "for i in 1 2 3 4 5; do (sleep 0.1 &) ; done; sleep 0.5; ps | grep -c '\\[sleep\\]'; exit 0";
      const lines = await output(script, { security: { share_process_namespace: true } });
      expect(lines).toEqual(["0"]);
    });

    test("a shared process namespace whose first process is killed is a lost sandbox, and the machine is made anew with its volumes", async () => {
      const script = "[ -f /v/f ] || chmod 700 /v; echo start >> /v/f; touch /m/f /own && sleep 1000";
      const id = await bench().create({
        restart_policy: "always",
        security: { share_process_namespace: true },
        volumes: [
          { name: "v", type: "empty_dir", medium: "disk" },
          { name: "m", type: "empty_dir", medium: "memory" },
        ],
        containers: [
          bench().shell("a", script, {
            mounts: [
              { volume: "v", path: "/v" },
              { volume: "m", path: "/m" },
            ],
          }),
        ],
      });
      const starts = async () => {
        const streams = await bench().exec(id, "a", ["sh", "-c", "cat /v/f; stat -c %a /v /m"]);
        return (await text(streams.stdout)).split("\n").filter((line) => line !== "");
      };
      await bench().until(async () => expect(await starts()).toEqual(["start", "700", "1777"]));
      const record = JSON.parse(
        readFileSync(join(bench().stateDir, "machines", id, "engine/sandbox.json"), "utf8"),
      ) as { pause: { pid: number } };
      process.kill(record.pause.pid, "SIGKILL");
      await bench().until(async () => {
        const notices = (await bench().get(id)).notices ?? [];
        expect(notices.some(({ reason }) => reason === "SandboxChanged")).toBe(true);
        expect((await bench().container(id, "a")).state).toBe("running");
        expect(await starts()).toEqual(["start", "start", "700", "1777"]);
      });
      await bench().provider.deletePod(id, { force: true, signal: bench().signal });
      await bench().reaches(id, "deleted");
      expect(existsSync(join(bench().stateDir, "machines", id))).toBe(false);
    });

    test("requests and limits become control group settings", async () => {
      const script =
        "cat /sys/fs/cgroup/cpu/cpu.cfs_quota_us /sys/fs/cgroup/cpu/cpu.shares 2>/dev/null || cat /sys/fs/cgroup/cpu.max";
      const resources = { requests: { cpu_millis: 250 }, limits: { cpu_millis: 500 } };
      const lines = await output(script, { containers: [bench().shell("a", script, { resources })] });
      expect(lines.join(" ")).toMatch(/^50000 256$|^50000 100000$/);
    });

    test("limits of the machine hold for all its containers together, and for each that has none", async () => {
      const script =
        "cat /sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/cpu/cpu.cfs_quota_us 2>/dev/null || cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/cpu.max";
      const id = await bench().create({
        resources: { limits: { memory_bytes: 64 << 20, cpu_millis: 500 } },
        containers: [
          bench().shell("a", `${script}; sleep 1000`),
          bench().shell("b", `${script}; sleep 1000`, { resources: { limits: { memory_bytes: 32 << 20 } } }),
        ],
      });
      await bench().until(async () => {
        expect((await bench().log(id, "a")).join(" ")).toMatch(/^67108864 50000(?: 100000)?$/);
        expect((await bench().log(id, "b")).join(" ")).toMatch(/^33554432 50000(?: 100000)?$/);
      });
      const group = `/vmlet-${machineHash(bench().stateDir)}/${machineHash(id)}`;
      expect(await new Cgroup(group).memoryLimit()).toBe(64 << 20);
      const cpu = ["cpu/GROUP/cpu.cfs_quota_us", "GROUP/cpu.max"].map((path) => `/sys/fs/cgroup/${path}`);
      const quota = cpu.map((path) => path.replace("/GROUP", group)).find((path) => existsSync(path))!;
      expect(readFileSync(quota, "utf8")).toMatch(/^50000\b/);
      const limits = { cpu_millis: 300, memory_bytes: 128 << 20 };
      const patch = { machine_resources: { limits } };
      const { resources } = await bench().provider.updatePod(id, patch, { signal: bench().signal });
      expect(resources).toEqual({ limits });
      expect(await new Cgroup(group).memoryLimit()).toBe(128 << 20);
      expect(readFileSync(quota, "utf8")).toMatch(/^30000\b/);
      const below = readdirSync(quota.replace(/\/[^/]*$/, ""), { withFileTypes: true });
      const own = below.filter((entry) => entry.isDirectory()).map(({ name }) => `${group}/${name}`);
      const owns = await Promise.all(own.map((each) => new Cgroup(each).memoryLimit()));
      expect(owns.toSorted((x, y) => x! - y!)).toEqual([32 << 20, 128 << 20]);
      const tiny = { machine_resources: { limits: { memory_bytes: 4096 } } };
      await expect(bench().provider.updatePod(id, tiny, { signal: bench().signal })).rejects.toThrow("current usage");
      expect(await new Cgroup(group).memoryLimit()).toBe(128 << 20);
      await bench().provider.deletePod(id, { force: true, signal: bench().signal });
      await bench().reaches(id, "deleted");
      expect(existsSync(quota)).toBe(false);
    });

    test("containers of a machine have no more processes together than one may have, and all machines leave some", async () => {
      const id = await bench().create({
        containers: [bench().shell("a", "sleep 1000"), bench().shell("b", "sleep 1000")],
      });
      await bench().reaches(id, "running");
      const root = `/vmlet-${machineHash(bench().stateDir)}`;
      const limit = (group: string) => {
        const paths = [`/sys/fs/cgroup/pids${group}/pids.max`, `/sys/fs/cgroup${group}/pids.max`];
        return Number(
          readFileSync(
            paths.find((path) => existsSync(path))!,
            "utf8",
          ),
        );
      };
      expect(limit(`${root}/${machineHash(id)}`)).toBe(4096);
      expect(limit(root)).toBeLessThan(Number(readFileSync("/proc/sys/kernel/pid_max", "utf8")));
      await bench().provider.deletePod(id, { force: true, signal: bench().signal });
    });

    test("what a container writes outside of its layer and its volumes is bounded, and not on the host's disk", async () => {
      const files = "/etc/hosts /etc/hostname /etc/resolv.conf /dev/termination-log";
      const script = `for f in ${files}; do head -c 100000000 /dev/zero >>$f || echo full; done 2>/dev/null; sleep 1000`;
      const id = await bench().create({ containers: [bench().shell("a", script)] });
      await bench().until(async () => expect(await bench().log(id, "a")).toEqual(["full", "full", "full", "full"]));
      const { stdout } = await run("du", ["-sx", "--block-size=1", join(bench().stateDir, "machines", id)]);
      expect(Number(stdout.toString().split("\t")[0])).toBeLessThan(1_000_000);
      await bench().provider.deletePod(id, { force: true, signal: bench().signal });
    });

    test("a container that makes files without end, with nothing in them, ends its machine", async () => {
      const id = await bench().create({
        containers: [
          bench().shell("a", "i=0; while [ $i -lt 600 ]; do : >/f$i; i=$((i + 1)); done; sleep 1000", {
            resources: { limits: { ephemeral_bytes: 2 << 20 } },
          }),
        ],
      });
      expect(await bench().reaches(id, "failed")).toMatchObject({ reason: "Evicted" });
    });

    test.each([
      [
        "a kernel parameter of the whole host",
        { security: { sysctls: [{ name: "vm.swappiness", value: "1" }] } },
        "invalid",
        "security.sysctls",
      ],
      [
        "a path of the host",
        { volumes: [{ name: "h", type: "host_path" as const, path: "/etc" }] },
        "unsupported",
        "volumes.0",
      ],
    ])("%s is refused", async (_title, more, code, field) => {
      await expect(bench().create({ containers: [bench().shell("a", "true")], ...more })).rejects.toMatchObject({
        code,
        field,
      });
    });

    test("a command beside a container's own is killed for want of memory as the container is", async () => {
      const resources = { requests: { memory_bytes: 1 << 20 } };
      const id = await bench().create({ containers: [bench().shell("a", "sleep 1000", { resources })] });
      await bench().reaches(id, "running");
      const streams = await bench().exec(id, "a", ["cat", "/proc/self/oom_score_adj"]);
      expect(await text(streams.stdout)).toBe("999\n");
      await bench().provider.deletePod(id, { force: true, signal: bench().signal });
    });

    test("a closed exec session ends its command, not the container", async () => {
      const id = await bench().create({ containers: [bench().shell("a", "sleep 1000")] });
      await bench().reaches(id, "running");
      const streams = await bench().exec(id, "a", ["sleep", "777"]);
      const running = async () => (await text((await bench().exec(id, "a", ["ps"])).stdout)).includes("sleep 777");
      await bench().until(async () => expect(await running()).toBe(true));
      streams.close();
      await bench().until(async () => expect(await running()).toBe(false));
      expect((await bench().container(id, "a")).state).toBe("running");
      await bench().provider.deletePod(id, { force: true, signal: bench().signal });
    });

    test("a resize changes the limits in place", async () => {
      const id = await bench().create({
        containers: [
          bench().shell("a", "sleep 1000", { resources: { limits: { memory_bytes: 64 << 20, cpu_millis: 100 } } }),
        ],
      });
      await bench().reaches(id, "running");
      await bench().provider.updatePod(
        id,
        { resources: [{ container: "a", resources: { limits: { memory_bytes: 128 << 20, cpu_millis: 300 } } }] },
        { signal: bench().signal },
      );
      const streams = await bench().exec(id, "a", [
        "sh",
        "-c",
        "cat /sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/cpu/cpu.cfs_quota_us 2>/dev/null || cat /sys/fs/cgroup/memory.max",
      ]);
      expect((await text(streams.stdout)).split("\n")[0]).toBe(String(128 << 20));
      expect((await bench().container(id, "a")).restart_count).toBe(0);
      await bench().provider.deletePod(id, { force: true, signal: bench().signal });
    });

    test("a deleted machine leaves no process, mount, control group, namespace or link", async () => {
      const id = await bench().create({
        security: { share_process_namespace: true },
        volumes: [{ name: "m", type: "empty_dir", medium: "memory" }],
        containers: [
          bench().shell("a", "setsid sleep 998 & sleep 1000", {
            mounts: [{ volume: "m", path: "/m", sub_path: "deep/er" }],
          }),
        ],
      });
      await bench().reaches(id, "running");
      const engineDir = join(bench().stateDir, "machines", id, "engine");
      expect(readFileSync("/proc/self/mountinfo", "utf8")).toContain(engineDir);
      await bench().provider.deletePod(id, { force: true, signal: bench().signal });
      await bench().reaches(id, "deleted");
      expect(readFileSync("/proc/self/mountinfo", "utf8")).not.toContain(engineDir);
      expect(existsSync(engineDir)).toBe(false);
      const { stdout } = await run("ps", ["-eo", "args"]);
      expect(stdout.toString()).not.toContain("sleep 998");
    });

    test("a machine's host ports are open again when this host's rules were flushed and the backend starts anew", async () => {
      const ports = [{ port: 80, protocol: "tcp" as const, host_port: 23_124 }];
      const id = await bench().create({ containers: [bench().shell("a", "sleep 1000", { ports })] });
      await bench().reaches(id, "running");
      await bench().provider.close();
      await run("nft", ["delete", "table", "inet", `vmlet_${network.bridge}`]);
      await bench().open();
      const { stdout } = await run("nft", ["list", "map", "inet", `vmlet_${network.bridge}`, "host_ports"]);
      expect(stdout.toString()).toContain("tcp . 23124 : ");
      await bench().provider.deletePod(id, { force: true, signal: bench().signal });
    });

    test("a second backend for the same bridge does not start, and removes nothing", async () => {
      const id = await bench().create({ containers: [bench().shell("a", "sleep 996")] });
      await bench().reaches(id, "running");
      const stateDir = mkdtempSync(join(tmpdir(), "vmlet-it-"));
      await expect(createEngine(stateDir).sweep(new Set())).rejects.toThrow("is in use by another backend");
      rmSync(stateDir, { recursive: true });
      const { ip } = (await bench().get(id)).addresses[0]!;
      const running = await bench().exec(id, "a", ["ip", "address", "show", "eth0"]);
      expect(await text(running.stdout)).toContain(ip);
      await bench().provider.deletePod(id, { force: true, signal: bench().signal });
    });

    test("what a killed backend left of a machine that nobody knows is swept", async () => {
      const id = await bench().create({ containers: [bench().shell("a", "sleep 997")] });
      await bench().reaches(id, "running");
      const engineDir = join(bench().stateDir, "machines", id, "engine");
      await bench().provider.close();
      try {
        const engine = createEngine(bench().stateDir);
        await engine.sweep(new Set());
        await engine.close();
        expect(readFileSync("/proc/self/mountinfo", "utf8")).not.toContain(engineDir);
        expect(readdirSync(join(bench().stateDir, "oci/machines"))).toEqual([]);
        const { stdout } = await run("ps", ["-eo", "args"]);
        expect(stdout.toString()).not.toContain("sleep 997");
      } finally {
        await bench().open();
      }
    });
  });
}
