import { spawn } from "node:child_process";
import { existsSync, readdirSync, readFileSync, statSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { afterAll, expect, test } from "vitest";
import { cgroupVersion } from "../../../providers/local/bundle/cgroup.ts";
import { CriClient } from "../../../providers/local/engines/cri/client.ts";
import { CriEngine } from "../../../providers/local/engines/cri/engine.ts";
import { processStat } from "../../../providers/local/host/proc.ts";
import { groupName } from "../../../providers/local/engines/cri/machine-groups.ts";
import { machineHash } from "../../../providers/local/host/machine-hash.ts";
import { HostNetwork } from "../../../providers/local/network/network.ts";
import type { ProviderError } from "../../../src/provider/errors.ts";
import { checkLoopVolumes, hasLoopVolumes } from "../../../providers/local/volumes/loop-files.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { systemClock } from "../../../src/util/clock.ts";
import { missingForContainerd } from "../../support/containerd.ts";
import { testNetwork } from "../../support/host.ts";
import { leaveOut } from "../../support/left-out.ts";
import { missingForImages } from "../../support/registry.ts";
import { containerTests, pushImages } from "../backend/containers.ts";
import { volumeTests } from "../backend/volumes.ts";
import { backendSuite, LOG_LIMITS, text } from "../backend/suite.ts";

const { dir: _dir, ...network } = testNetwork("");
/** Fewer than this host has. */
const capacity = { cpu_millis: 1000, memory_bytes: 1024 ** 3 };
const missing = [(await missingForContainerd()) ?? [], missingForImages() ?? []].flat();

if (missing.length > 0) leaveOut("engine cri", missing);
else {
  const images = await pushImages();
  const createEngine = (stateDir: string) =>
    new CriEngine({
      stateDir,
      clock: systemClock,
      logger: silentLogger,
      network,
      images: { insecureRegistries: [images.registry.host] },
      capacity,
      allowPrivileged: true,
      logLimits: LOG_LIMITS,
    });
  afterAll(async () => {
    await images.registry.stop();
    await new HostNetwork({ dir: "/nonexistent/network", ...network }).remove();
  });

  backendSuite({ name: "cri", image: images.image, createEngine, ownProcesses: true }, (bench) => {
    containerTests(bench, images, { fileSubPaths: false });
    if (hasLoopVolumes()) volumeTests(bench);
    else
      leaveOut(
        `volumes of engine cri`,
        checkLoopVolumes().map(({ problem }) => problem),
      );

    /** Processes of a machine's containers whose command line begins so. */
    const processesOf = (id: string, command: string) => {
      const group = `/sys/fs/cgroup/pids/vmlet-${machineHash(bench().stateDir)}/${groupName(id)}`;
      const groups = cgroupVersion() === 1 ? group : group.replace("/pids/", "/");
      return readdirSync(groups)
        .map((name) => join(groups, name, "cgroup.procs"))
        .filter((file) => existsSync(file))
        .flatMap((file) => readFileSync(file, "latin1").split("\n").filter(Boolean).map(Number))
        .filter((pid) => readFileSync(`/proc/${pid}/cmdline`, "latin1").startsWith(command));
    };
    const socket = () => `/run/vmlet-cri-${machineHash(join(bench().stateDir, "cri"))}/containerd.sock`;
    /** How many of containerd's shims run. */
    const shims = () =>
      readdirSync("/proc")
        .filter((name) => /^\d+$/.test(name) && existsSync(`/proc/${name}/cmdline`))
        .map((name) => readFileSync(`/proc/${name}/cmdline`, "latin1").split("\0"))
        .filter((argv) => argv.includes("-namespace") && argv.includes(socket())).length;
    const isReady = async () => {
      const client = new CriClient(socket());
      const ready = await client.runtime.status({}, client.within(1_000)).then(
        () => true,
        () => false,
      );
      client.close();
      return ready;
    };
    const containerdPid = () => Number(readFileSync(join(bench().stateDir, "cri/pid"), "latin1").split(" ")[0]);

    test("all machines together have no more memory than the owner of the host grants", async () => {
      const group = `vmlet-${machineHash(bench().stateDir)}`;
      const file = cgroupVersion() === 1 ? `memory/${group}/memory.limit_in_bytes` : `${group}/memory.max`;
      expect(Number(readFileSync(join("/sys/fs/cgroup", file), "latin1"))).toBe(capacity.memory_bytes);
    });

    test("a resize changes the limits of the container that runs, and takes one away", async () => {
      const id = await bench().create({
        containers: [
          bench().shell("a", "sleep 1000", { resources: { limits: { memory_bytes: 64 << 20, cpu_millis: 100 } } }),
        ],
      });
      await bench().reaches(id, "running");
      const [memory, cpu] =
        cgroupVersion() === 1
          ? ["/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/cpu/cpu.cfs_quota_us"]
          : ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/cpu.max"];
      const limits = async () => {
        const streams = await bench().exec(id, "a", ["cat", memory, cpu]);
        streams.stderr!.resume();
        return (await text(streams.stdout)).split(/\s+/).slice(0, 2);
      };
      expect(await limits()).toEqual([String(64 << 20), "10000"]);
      const resize = async (limits: { memory_bytes: number; cpu_millis?: number }) => {
        const resources = [{ container: "a", resources: { limits } }];
        await bench().provider.updatePod(id, { resources }, { signal: bench().signal });
      };
      await resize({ memory_bytes: 128 << 20, cpu_millis: 300 });
      expect(await limits()).toEqual([String(128 << 20), "30000"]);
      await resize({ memory_bytes: 128 << 20 });
      expect(await limits()).toEqual([String(128 << 20), cgroupVersion() === 1 ? "-1" : "max"]);
      expect((await bench().container(id, "a")).restart_count).toBe(0);
    });

    test("containers live through the death of containerd, which is started again", async () => {
      const script = "echo begun; while [ ! -e /v/end ]; do sleep 0.05; done; echo over; exit 6";
      const id = await bench().create({
        volumes: [{ name: "v", type: "empty_dir", medium: "disk" }],
        containers: [bench().shell("a", script, { mounts: [{ volume: "v", path: "/v" }] })],
      });
      await bench().until(async () => expect(await bench().log(id, "a")).toEqual(["begun"]));
      await bench().reaches(id, "running");
      process.kill(containerdPid(), "SIGKILL");
      expect((await bench().container(id, "a")).state).toBe("running");
      await bench().until(async () => expect((await (await bench().exec(id, "a", ["true"])).exit).exitCode).toBe(0));
      writeFileSync(join(bench().stateDir, "machines", id, "engine/volumes/v/end"), "");
      expect(await bench().terminated(id, "a")).toMatchObject({ exit_code: 6 });
      expect(await bench().log(id, "a")).toEqual(["begun", "over"]);
    });

    test("a command that has ended ends its session, however much input is still to come", async () => {
      const id = await bench().create({ containers: [bench().shell("a", "sleep 1000")] });
      await bench().reaches(id, "running");
      const session = await bench().exec(id, "a", ["sh", "-c", "echo words; exit 3"], { stdin: true });
      session.stdin!.on("error", () => {});
      session.stdin!.write(Buffer.alloc(20 << 20));
      session.stderr!.resume();
      expect(await text(session.stdout)).toBe("words\n");
      // containerd may have to be left before it has told the code.
      expect(await session.exit.catch(({ code }: ProviderError) => code)).toBeOneOf([{ exitCode: 3 }, "unavailable"]);
    });

    test("an attached session whose input has ended is over, and the process lives on", async () => {
      const script = "while read line; do echo got $line; done";
      const id = await bench().create({ containers: [bench().shell("a", script, { stdin: true })] });
      await bench().reaches(id, "running");
      const session = await bench().provider.attach(id, "a", bench().streams({ stdin: true }));
      session.stdout!.resume();
      session.stderr!.resume();
      session.stdin!.end("hello\n");
      expect((await session.exit).exitCode).toBe(0);
      expect((await bench().container(id, "a")).state).toBe("running");
    });

    test("a container that is stopped while containerd is dead has its stop signal when that is back", async () => {
      const script = "trap 'exit 4' TERM; echo begun; while :; do sleep 0.05; done";
      const id = await bench().create({ containers: [bench().shell("a", script)] });
      await bench().until(async () => expect(await bench().log(id, "a")).toEqual(["begun"]));
      process.kill(containerdPid(), "SIGKILL");
      await bench().provider.stopPod(id, { graceSeconds: 600, signal: bench().signal });
      expect(await bench().terminated(id, "a")).toMatchObject({ exit_code: 4 });
    });

    test("a container that has ended while containerd was dead is told with its own exit code and time", async () => {
      const script = "while [ ! -e /v/end ]; do sleep 0.05; done; exit 7";
      const id = await bench().create({
        volumes: [{ name: "v", type: "empty_dir", medium: "disk" }],
        containers: [bench().shell("a", script, { mounts: [{ volume: "v", path: "/v" }] })],
      });
      await bench().reaches(id, "running");
      await bench().provider.close();
      process.kill(containerdPid(), "SIGKILL");
      const [command] = processesOf(id, "sh");
      writeFileSync(join(bench().stateDir, "machines", id, "engine/volumes/v/end"), "");
      // Its shim has seen the end.
      await bench().until(() => expect(existsSync(`/proc/${command}`)).toBe(false));
      await bench().open();
      const { exit_code, reason, finished_at } = await bench().terminated(id, "a");
      expect([exit_code, reason]).toEqual([7, "Error"]);
      const startedAgain = statSync(join(bench().stateDir, "cri/pid")).mtimeMs;
      expect(Date.parse(finished_at)).toBeLessThanOrEqual(startedAgain);
    });

    test("a container whose end nobody has seen is said to be of unknown status", async () => {
      const id = await bench().create({ containers: [bench().shell("a", "sleep 1000")] });
      await bench().reaches(id, "running");
      await bench().provider.close();
      process.kill(containerdPid(), "SIGKILL");
      process.kill(processesOf(id, "sleep")[0]!, "SIGKILL");
      // Nobody asks the shims before this one starts.
      const dir = join(bench().stateDir, "cri");
      const containerd = spawn("containerd", ["--config", join(dir, "config.toml")], { stdio: "ignore" });
      await bench().until(async () => expect(await isReady()).toBe(true));
      writeFileSync(join(dir, "pid"), `${containerd.pid} ${processStat(containerd.pid!)!.startTime}`);
      await bench().open();
      const { exit_code, reason } = await bench().terminated(id, "a");
      expect([exit_code, reason]).toEqual([137, "ContainerStatusUnknown"]);
    });

    test("a container that has ended while there was no backend is told with its own exit code and log", async () => {
      const script = "echo begun; while [ ! -e /v/end ]; do sleep 0.05; done; echo over; exit 9";
      const id = await bench().create({
        volumes: [{ name: "v", type: "empty_dir", medium: "disk" }],
        containers: [bench().shell("a", script, { mounts: [{ volume: "v", path: "/v" }] })],
      });
      await bench().until(async () => expect(await bench().log(id, "a")).toEqual(["begun"]));
      await bench().provider.close();
      writeFileSync(join(bench().stateDir, "machines", id, "engine/volumes/v/end"), "");
      await bench().open();
      expect(await bench().terminated(id, "a")).toMatchObject({ exit_code: 9 });
      expect(await bench().log(id, "a")).toEqual(["begun", "over"]);
    });

    test("a sandbox whose first process is killed is lost, and the machine is made anew with its volumes", async () => {
      const id = await bench().create({
        restart_policy: "always",
        volumes: [{ name: "v", type: "empty_dir", medium: "disk" }],
        containers: [
          bench().shell("a", "echo start >> /v/f; cat /v/f; sleep 1000", { mounts: [{ volume: "v", path: "/v" }] }),
        ],
      });
      await bench().until(async () => expect(await bench().log(id, "a")).toEqual(["start"]));
      process.kill(processesOf(id, "/pause")[0]!, "SIGKILL");
      await bench().until(async () => expect(await bench().log(id, "a")).toEqual(["start", "start"]));
      const notices = (await bench().get(id)).notices ?? [];
      expect(notices.some(({ reason }) => reason === "SandboxChanged")).toBe(true);
    });

    test("no shim is left of a sandbox whose first process was killed", async () => {
      const id = await bench().create({ restart_policy: "always", containers: [bench().shell("a", "sleep 1000")] });
      await bench().reaches(id, "running");
      const before = shims();
      const [first] = processesOf(id, "/pause");
      process.kill(first!, "SIGKILL");
      await bench().until(() => expect(processesOf(id, "/pause")).not.toEqual([first]));
      await bench().reaches(id, "running");
      await bench().until(() => expect(processesOf(id, "sleep")).toHaveLength(1));
      await bench().until(() => expect(shims()).toBeLessThanOrEqual(before));
    });

    test("a backend that ends without machines leaves neither containerd nor network behind", async () => {
      const { provider, signal } = bench();
      const { items } = await provider.getPods({ labels: {}, signal });
      for (const { id } of items) await provider.deletePod(id, { force: true, signal });
      for (const { id } of items) await bench().reaches(id, "deleted");
      const pid = containerdPid();
      const bridge = `/sys/class/net/${network.bridge}`;
      expect(existsSync(bridge)).toBe(true);
      await bench().provider.close();
      expect([existsSync(bridge), existsSync(dirname(socket())), processStat(pid)]).toEqual([false, false, undefined]);
      await bench().open();
    });

    test("a machine that is deleted leaves nothing of it in the runtime, on the network or in control groups", async () => {
      const id = await bench().create({
        containers: [bench().shell("a", "sleep 1000", { ports: [{ port: 80, protocol: "tcp", host_port: 38_231 }] })],
      });
      await bench().reaches(id, "running");
      await bench().provider.deletePod(id, { force: true, signal: bench().signal });
      await bench().reaches(id, "deleted");
      const client = new CriClient(socket());
      const [{ containers }, { items }] = await Promise.all([
        client.runtime.listContainers({}, client.within()),
        client.runtime.listPodSandbox({}, client.within()),
      ]);
      client.close();
      const its = (labels: Record<string, string>) => labels["dev.vmlet/machine"] === id;
      expect([containers.filter(({ labels }) => its(labels)), items.filter(({ labels }) => its(labels))]).toEqual([
        [],
        [],
      ]);
      const group = `vmlet-${machineHash(bench().stateDir)}/${groupName(id)}`;
      expect(["/sys/fs/cgroup/memory", "/sys/fs/cgroup"].some((tree) => existsSync(join(tree, group)))).toBe(false);
      expect(existsSync(join(bench().stateDir, "machines", id))).toBe(false);
    });
  });
}
