import { randomBytes } from "node:crypto";
import { once } from "node:events";
import { existsSync, readdirSync, readFileSync, rmSync, statSync, truncateSync } from "node:fs";
import { dirname, join } from "node:path";
import { afterAll, expect, test } from "vitest";
import { VmEngine } from "../../../providers/local/engines/vm/engine.ts";
import { MAX_PORTS } from "../../../providers/local/engines/vm/ports.ts";
import { run } from "../../../providers/local/host/command.ts";
import { HostNetwork } from "../../../providers/local/network/network.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { systemClock } from "../../../src/util/clock.ts";
import { testNetwork } from "../../support/host.ts";
import { leaveOut } from "../../support/left-out.ts";
import { missingForImages } from "../../support/registry.ts";
import { containerTests, pushImages } from "../backend/containers.ts";
import { backendSuite, text } from "../backend/suite.ts";
import { diskTests } from "./disks.ts";
import { nfsTests } from "./nfs.ts";
import { ownPathTests } from "./own-paths.ts";

/** Default: made from Debian packages at the first run, and kept in the cache. */
const guestDir = process.env["VMLET_GUEST_DIR"];
const createEngine = (stateDir: string, insecureRegistries: string[] = []) =>
  new VmEngine({
    stateDir,
    clock: systemClock,
    logger: silentLogger,
    network,
    images: { insecureRegistries },
    guestDir,
  });
const { dir: _dir, ...network } = testNetwork("");
const problems = (await createEngine("/nonexistent").check())
  .filter(({ fatal }) => fatal)
  .map(({ problem }) => problem);
const missing = [...problems, ...[missingForImages() ?? []].flat()];

if (missing.length > 0) {
  leaveOut("engine vm", missing);
} else {
  const images = await pushImages();
  afterAll(async () => {
    await images.registry.stop();
    await new HostNetwork({ dir: "/nonexistent/network", ...network }).remove();
  });

  const create = (stateDir: string) => createEngine(stateDir, [images.registry.host]);
  const subject = { name: "vm", image: images.image, createEngine: create, ownProcesses: true, patienceMs: 150_000 };
  backendSuite(subject, (bench) => {
    containerTests(bench, images);

    const keyOf = (id: string) => {
      const records = join(bench().stateDir, "vm/machines");
      const all = readdirSync(records).map(
        (name) => JSON.parse(readFileSync(join(records, name), "utf8")) as { id: string; key: string },
      );
      return all.find((record) => record.id === id)!.key;
    };
    /** QEMU processes of this machine. */
    const vms = async (id: string) => {
      const key = keyOf(id);
      const { stdout } = await run("ps", ["-eo", "pid,args"]);
      return stdout
        .toString()
        .split("\n")
        .filter((line) => line.includes("qemu-system") && line.includes(join(bench().stateDir, "vm/v", key)))
        .map((line) => Number(line.trim().split(" ")[0]));
    };
    const sleeper = async (more: object = {}) => {
      const id = await bench().create({ containers: [bench().shell("a", "sleep 1000")], ...more });
      await bench().reaches(id, "running");
      return id;
    };
    diskTests(bench, vms);
    ownPathTests(bench);
    nfsTests(bench);
    const remove = (id: string) => bench().provider.deletePod(id, { force: true, signal: bench().signal });
    const output = async (id: string, script: string) =>
      await text((await bench().exec(id, "a", ["sh", "-c", script])).stdout);

    test("a machine has a kernel of its own", async () => {
      const id = await sleeper();
      const { stdout } = await run("uname", ["-r"]);
      expect((await output(id, "uname -r")).trim()).not.toBe(stdout.toString().trim());
      await remove(id);
    });

    test("a machine's QEMU is a copy of a template, and runs as a user that no other has", async () => {
      const both = await Promise.all([sleeper(), sleeper()]);
      const users = await Promise.all(
        both.map(async (id) => {
          const [pid] = await vms(id);
          expect(readFileSync(`/proc/${pid}/cmdline`, "latin1")).toContain(join(bench().stateDir, "vm/templates/"));
          return statSync(`/proc/${pid}`).uid;
        }),
      );
      expect(new Set([...users, 0]).size).toBe(3);
      await Promise.all(both.map(remove));
    });

    test("files of Secrets and the environment are not on the machine's disk, what a container writes is", async () => {
      const [written, file, variable, told] = Array.from({ length: 4 }, () => randomBytes(16).toString("hex"));
      const files = [{ path: "k", mode: 0o400, content_b64: Buffer.from(file!).toString("base64") }];
      const id = await bench().create({
        volumes: [
          { name: "s", type: "files", version: "1", files },
          { name: "e", type: "empty_dir", medium: "disk" },
        ],
        containers: [
          bench().shell("a", "sleep 1000", {
            env: [{ name: "SECRET", value: variable! }],
            mounts: [
              { volume: "s", path: "/secret" },
              { volume: "e", path: "/empty" },
            ],
          }),
        ],
      });
      await bench().reaches(id, "running");
      // In two halves, so that the command is not what is found.
      const write = `printf %s%s ${written!.slice(0, 9)} ${written!.slice(9)} > /empty/written; sync`;
      expect(await output(id, `cat /secret/k; echo $SECRET; : ${told}; ${write}`)).toBe(`${file}${variable}\n`);
      const disk = join(bench().stateDir, "vm/v", keyOf(id), "disk.img");
      // Of a copy, for the machine goes on writing; without its holes, of which it mostly consists.
      const copy = join(bench().stateDir, "disk-copy.img");
      await run("cp", ["--sparse=always", disk, copy]);
      const content = (await run("tar", ["-Scf", "-", copy], { maxOutputBytes: 1 << 30 })).stdout;
      rmSync(copy);
      const found = [written!, file!, variable!, told!].map((text) => content.includes(text));
      expect(found).toEqual([true, false, false, false]);
      await remove(id);
    });

    test("what a container deletes, the host's disk has room for again", async () => {
      const id = await bench().create({
        volumes: [{ name: "e", type: "empty_dir", medium: "disk" }],
        containers: [bench().shell("a", "sleep 1000", { mounts: [{ volume: "e", path: "/empty" }] })],
      });
      await bench().reaches(id, "running");
      const taken = () => statSync(join(bench().stateDir, "vm/v", keyOf(id), "disk.img")).blocks * 512;
      const [before, written] = [taken(), 32 * 2 ** 20];
      await output(id, `head -c ${written} /dev/urandom > /empty/a; sync`);
      expect(taken()).toBeGreaterThan(before + 0.9 * written);
      await output(id, "rm /empty/a; sync");
      await bench().until(async () => expect(taken()).toBeLessThan(before + 0.1 * written));
      await remove(id);
    });

    test("copies of one template have different random numbers and their own clock", async () => {
      const [a, b] = await Promise.all([sleeper(), sleeper()]);
      const [first, second] = await Promise.all([a, b].map((id) => output(id, "head -c 16 /dev/urandom | md5sum")));
      expect(first).not.toBe(second);
      expect(Math.abs(Number(await output(a, "date +%s")) - Date.now() / 1000)).toBeLessThan(10);
      await Promise.all([remove(a), remove(b)]);
    });

    test("with a shared process namespace containers see each other's processes", async () => {
      const id = await bench().create({
        security: { share_process_namespace: true },
        containers: [
          bench().shell("a", "exec sleep 4321"),
          bench().shell("b", "while ! ps | grep -q '[s]leep 4321'; do sleep 0.1; done"),
        ],
      });
      expect((await bench().terminated(id, "b")).exit_code).toBe(0);
      await remove(id);
    });

    test("an ephemeral container sees the processes of its target, and of no other", async () => {
      const id = await bench().create({
        containers: [bench().shell("a", "exec sleep 4321"), bench().shell("b", "exec sleep 1234")],
      });
      await bench().reaches(id, "running");
      const look = bench().shell("e", "ps | grep -o '[s]leep [0-9]*'", { target: "a" });
      await bench().provider.updatePod(id, { ephemeral_containers: [look] }, { signal: bench().signal });
      await bench().terminated(id, "e");
      expect(await bench().log(id, "e")).toEqual(["sleep 4321"]);
      await remove(id);
    });

    test("a resize changes the limits in place, and refuses more memory than the VM has", async () => {
      const id = await bench().create({
        containers: [
          bench().shell("a", "sleep 1000", { resources: { limits: { memory_bytes: 64 << 20, cpu_millis: 100 } } }),
        ],
      });
      await bench().reaches(id, "running");
      const resize = (memory_bytes: number) =>
        bench().provider.updatePod(
          id,
          { resources: [{ container: "a", resources: { limits: { memory_bytes, cpu_millis: 300 } } }] },
          { signal: bench().signal },
        );
      await resize(96 << 20);
      const script = "cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/cpu.max";
      expect((await output(id, script)).split("\n").slice(0, 2)).toEqual([String(96 << 20), "30000 100000"]);
      await expect(resize(100 * 2 ** 30)).rejects.toMatchObject({
        code: "invalid",
        field: "resources.limits.memory_bytes",
      });
      expect((await bench().container(id, "a")).restart_count).toBe(0);
      await remove(id);
    });

    test("containers have randomised addresses, though the runtime has not", async () => {
      const id = await sleeper();
      const script = "cat /proc/1/personality /proc/self/personality";
      const streams = await bench().exec(id, "a", ["sh", "-c", script]);
      expect(await text(streams.stdout)).toBe("00000000\n00000000\n");
      await remove(id);
    });

    test("a VM has the memory that its containers may use, and not the host's", async () => {
      const id = await bench().create({
        containers: [bench().shell("a", "sleep 1000", { resources: { limits: { memory_bytes: 300 << 20 } } })],
      });
      await bench().reaches(id, "running");
      const kib = Number(/MemTotal:\s+(\d+)/.exec(await output(id, "cat /proc/meminfo"))![1]);
      expect(kib).toBeGreaterThan(300 * 1024);
      expect(kib).toBeLessThan(600 * 1024);
      await remove(id);
    });

    test("as many commands as a small VM has ports leave it alive, and one more is refused", async () => {
      const id = await bench().create({
        containers: [bench().shell("a", "sleep 1000", { resources: { limits: { memory_bytes: 64 << 20 } } })],
      });
      await bench().reaches(id, "running");
      const running = [];
      // Number 0 is QEMU's, 1 the control channel's, 2 the container's.
      for (let port = 3; port < MAX_PORTS; port++) {
        const command = ["sh", "-c", "echo begun; exec sleep 1000"];
        const streams = await bench().exec(id, "a", command);
        await once(streams.stdout!, "readable");
        running.push(streams);
      }
      await expect(bench().exec(id, "a", ["true"])).rejects.toMatchObject({
        code: "unavailable",
        message: expect.stringContaining("try again when one has ended"),
      });
      for (const streams of running) streams.close();
      await bench().until(async () => expect(await output(id, "echo still here")).toBe("still here\n"));
      expect((await bench().container(id, "a")).restart_count).toBe(0);
      await remove(id);
    });

    test("a container may open many files", async () => {
      const id = await sleeper();
      expect(Number(await output(id, "ulimit -Hn"))).toBeGreaterThanOrEqual(65_536);
      await remove(id);
    });

    test("a container that begins processes without end leaves some for the other containers and for the host's commands", async () => {
      const script = "mkfifo /f; (while :; do read x < /f & done); echo full; exec sleep 1000";
      const id = await bench().create({
        containers: [bench().shell("a", "sleep 1000"), bench().shell("b", script)],
      });
      await bench().until(async () => expect(await bench().log(id, "b", { stream: "stdout" })).toEqual(["full"]));
      expect(await output(id, "echo still here")).toBe("still here\n");
      await remove(id);
    });

    test("a template that leads to no guest is made anew, and the machine runs all the same", async () => {
      const templates = join(bench().stateDir, "vm/templates");
      const states = () =>
        readdirSync(templates)
          .map((name) => join(templates, name, "state.bin"))
          .filter((file) => existsSync(file));
      // Those of other sizes, which this machine does not use.
      for (const file of states()) rmSync(dirname(file), { recursive: true });
      await remove(await sleeper());
      const [state, ...others] = states();
      expect(others).toEqual([]);
      truncateSync(state!, 1000);
      await remove(await sleeper());
      await remove(await sleeper());
      expect(statSync(state!).size).toBeGreaterThan(1000);
    });

    test.each([
      ["killed", async (id: string) => void process.kill((await vms(id))[0]!, "SIGKILL")],
      [
        "panicking",
        async (id: string) => void (await bench().exec(id, "a", ["sh", "-c", "echo c > /proc/sysrq-trigger"])),
      ],
    ])("a VM that ends by itself (%s) fails a machine that is not to be restarted", async (_how, end) => {
      const id = await bench().create({
        containers: [bench().shell("a", "sleep 1000", { security: { privileged: true } })],
      });
      await bench().reaches(id, "running");
      await end(id);
      await bench().reaches(id, "failed");
      expect((await bench().get(id)).reason).toBe("SandboxLost");
      await remove(id);
    });

    test("a VM that ends by itself is made anew for a machine that restarts", async () => {
      const id = await sleeper({ restart_policy: "always" });
      const [before] = await vms(id);
      process.kill(before!, "SIGKILL");
      await bench().until(async () => {
        expect(await vms(id)).not.toContain(before);
        expect((await bench().container(id, "a")).state).toBe("running");
        expect((await bench().container(id, "a")).restart_count).toBeGreaterThan(0);
      });
      await remove(id);
    });

    test("a deleted machine leaves no VM, no tap, no disk", async () => {
      const id = await sleeper();
      const [pid] = await vms(id);
      const key = keyOf(id);
      const links = async () => (await run("ip", ["-br", "link", "show", "master", network.bridge!])).stdout.toString();
      expect(await links()).toContain("UP");
      await remove(id);
      await bench().reaches(id, "deleted");
      expect(existsSync(`/proc/${pid}`)).toBe(false);
      expect(existsSync(join(bench().stateDir, "machines", id, "engine"))).toBe(false);
      expect(readdirSync(join(bench().stateDir, "vm/v"))).not.toContain(key);
    });
  });
}
