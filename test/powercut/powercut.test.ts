/**
 * The backend on a host that loses its power. `POWERCUTS`: how often (default 1), `POWERCUT_SEED`: where chance begins,
 * `POWERCUT_ENGINE`: on which engine (`oci`, or `cri` with the containerd that is built here).
 * What is lost and how is said in test/SIMULATION.md.
 */
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { inspect } from "node:util";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import type { ContainerState } from "../../src/provider/machine.ts";
import { must } from "../e2e/harness/wait.ts";
import { seeded } from "../simulation/seeded.ts";
import { containerdPrograms } from "../support/containerd.ts";
import { leaveOut } from "../support/left-out.ts";
import { busyboxImage, missingForImages, startRegistry, type TestRegistry } from "../support/registry.ts";
import { EmulatedHost, insideName, makeImages, missingForHost, type Images, type Patience } from "./host/host.ts";
import { Roll, Workload } from "./workload.ts";

const CUTS = Number(process.env["POWERCUTS"] ?? 1);
const SEED = Number(process.env["POWERCUT_SEED"] ?? 1);
const ENGINE = process.env["POWERCUT_ENGINE"] === "cri" ? "cri" : "oci";
/** After so many cuts another disk begins empty. */
const CUTS_PER_DISK = 5;
/** In how many writes and flushes of the disk, at most, the cut comes. */
const OPERATIONS = 250;
/** The same of a boot, which writes less: a journal is replayed, and a backend takes up what it finds. */
const BOOT_OPERATIONS = 80;
const REST: Patience = { processorMs: 180_000, ms: 900_000 };
const CLEAN: Patience = { processorMs: 60_000, ms: 300_000 };
/** Boots, rests and looks, each at its own deadline. */
const CUT_MS = 1_800_000;

const SLOWLY = { timeoutMs: 300_000 };
const inTime = () => ({ signal: AbortSignal.timeout(60_000) });
const programs = await containerdPrograms().catch(() => undefined);
const missing = [
  ...missingForHost(),
  ...[missingForImages() ?? []].flat(),
  ...(ENGINE === "cri" && programs === undefined ? ["a containerd that was built"] : []),
];

if (missing.length > 0) leaveOut("losses of power", missing);
else
  describe("a host that loses its power", () => {
    const random = seeded(SEED);
    const roll = new Roll();
    let dir: string;
    let images: Images;
    let registry: TestRegistry;
    let port: number;
    let host: EmulatedHost | undefined;
    let workload: Workload;
    let cutsOfDisk = 0;

    beforeAll(async () => {
      dir = await mkdtemp(join(tmpdir(), "vmlet-powercut-images-"));
      registry = await startRegistry();
      await registry.push("busybox", await busyboxImage());
      port = await roll.listen();
      images = await makeImages(dir, programs);
    }, 600_000);

    afterAll(async () => {
      await host?.close();
      roll.close();
      await registry.stop();
      await rm(dir, { recursive: true, force: true });
    });

    const runsTwice = () =>
      [...roll.runs]
        .filter(([id, runs]) => runs > 1 && workload.machines.get(id)?.kind !== "for ever")
        .map(([id]) => id);

    async function verify(): Promise<void> {
      const provider = host!.provider();
      const faults: string[] = [];
      await host!.waitFor("all machines to come to rest", REST, async () => {
        faults.push(...(await workload.look(provider)));
        const unrest = workload.unrest();
        must(unrest.length === 0, unrest);
      });
      expect(faults).toEqual([]);
      expect(runsTwice()).toEqual([]);
      expect(roll.faults).toEqual([]);
    }

    /** All that the backend may have left on its host. */
    async function leftovers(): Promise<string> {
      return await host!.shell(`
        for folder in machines run oci/machines \
          cri/root/io.containerd.grpc.v1.cri/containers cri/root/io.containerd.grpc.v1.cri/sandboxes; do
          ls -d /var/lib/vmlet/state/$folder/* 2>/dev/null || true
        done
        ls /run/vmlet-cri-*/state/io.containerd.runtime.v2.task/k8s.io /run/vmlet-cri-*/exits /run/vmlet-cri-*/state/netns 2>/dev/null | grep -v '^/run' || true
        ls /var/lib/vmlet/state/cri/cni-leases/* 2>/dev/null | grep -E '^[0-9]+\\.' || true
        ls /var/lib/cni/results 2>/dev/null || true
        ls /var/lib/vmlet/state/network | grep -E '^[0-9]+\\.' || true
        /usr/bin/losetup --list --noheadings
        ip -o link | grep -oE ' (vm|ve)[a-z0-9]*[0-9][^:@]*' | grep -v ' vmlet0' || true
        ls /run/netns 2>/dev/null || true
        grep -oE ' /var/lib/vmlet/state/[^ ]*' /proc/mounts || true
        find /sys/fs/cgroup -mindepth 2 -type d -path '*vmlet-*' | grep -v '/vmlet[^/]*$' || true
        ps | grep -E 'shim.js|shim-runc|runc |pause' | grep -v grep || true`);
    }

    async function newHost(): Promise<EmulatedHost> {
      await host?.close();
      cutsOfDisk = 0;
      // Its machines have the same names again.
      roll.runs.clear();
      roll.written.clear();
      const made = await EmulatedHost.make(images, registry.host, { engine: ENGINE });
      workload = new Workload(`${insideName(registry.host)}/busybox`, port);
      await made.boot();
      return made;
    }

    /** A failure is told with the state of the host, which is then of no more use. */
    async function explained(what: string, act: () => Promise<void>): Promise<void> {
      try {
        await act();
      } catch (thrown) {
        // At once, for others may follow for hours; and these have nothing to do with what this one has left.
        const state = await host?.state().catch((thrown_: unknown) => `its state cannot be told: ${inspect(thrown_)}`);
        console.error(`${what}: ${inspect(thrown)}\n${state ?? ""}`);
        await host?.close();
        host = undefined;
        throw thrown;
      }
    }

    /** Boots, and may lose its power again before, or just when, the backend answers. */
    async function bootUnsteadily(on: EmulatedHost): Promise<boolean> {
      if (random() < 0.6) return false;
      const again = Promise.withResolvers<void>();
      on.disk.cutAfter(1 + Math.floor(random() ** 2 * BOOT_OPERATIONS), again.resolve);
      const up = on.boot().then(
        () => undefined,
        (thrown: unknown) => thrown,
      );
      const failure = await Promise.race([again.promise, up]);
      // It has not lost its power, and is not up.
      if (failure !== undefined) throw failure;
      await on.cut(random);
      await up;
      return true;
    }

    async function cutOnce(number: number): Promise<void> {
      if (cutsOfDisk === CUTS_PER_DISK || host === undefined) host = await newHost();
      cutsOfDisk++;
      const { disk } = host;
      const cut = Promise.withResolvers<void>();
      const countdown = () => disk.cutAfter(1 + Math.floor(random() ** 2 * OPERATIONS), cut.resolve);
      // While machines are asked for, or when all have been acknowledged and are about to run.
      const isEarly = random() < 0.5;
      if (isEarly) countdown();
      const isOn = { value: true };
      const off = cut.promise.then(() => (isOn.value = false));
      const worked = workload
        .run(host.provider(), random, () => isOn.value)
        .catch(() => {})
        .then(async () => {
          if (!isEarly) countdown();
          // What goes on by itself afterwards is worth a cut too, while there is something.
          const until = performance.now() + 20_000 * random();
          while (isOn.value && performance.now() < until) await workload.look(host!.provider()).catch(() => []);
        });
      await Promise.race([off, worked]);
      await host.cut(random);
      isOn.value = false;
      await worked;
      const isCutAgain = await bootUnsteadily(host);
      await host.boot();
      await verify();
      const known = [...workload.machines.values()];
      const acknowledged = known.filter(({ created, deleted }) => created || deleted).length;
      console.log(
        JSON.stringify({
          engine: ENGINE,
          cut: number + 1,
          isCutAgain,
          acknowledged,
          runs: roll.runs.size,
          disk: disk.count,
        }),
      );
    }

    for (let number = 0; number < CUTS; number++)
      test(
        `cut ${number + 1}: after the next boot every acknowledged machine is as it should be`,
        { timeout: CUT_MS },
        () => explained(`cut ${number + 1}`, () => cutOnce(number)),
      );

    test("nothing is left when all machines are deleted", { timeout: CUT_MS }, async () => {
      host ??= await newHost();
      await explained("the end", async () => {
        await workload.deleteAll(host!.provider());
        await verify();
        await host!.waitFor("the host to be clean", CLEAN, async () => {
          const left = await leftovers();
          must(!/\S/.test(left), left);
        });
      });
    });

    test("a VM's jail and its limits hold where there are control groups v2 alone", { timeout: 600_000 }, async () => {
      host ??= await newHost();
      await explained("the jail", async () => {
        const text = await host!.shell(
          'timeout 240 /app/bin/node /app/test/powercut/host/jail.ts /app/guest; echo "ended with $?"',
          { timeoutMs: 300_000 },
        );
        const line = text.split("\n").find((each) => each.startsWith("{"));
        expect(line, text).toBeDefined();
        expect(JSON.parse(line!)).toEqual({
          groupVersion: expect.arrayContaining(["cpu", "memory", "pids"]),
          limits: {
            "memory.max": String(34 * 2 ** 20 + 192 * 2 ** 20),
            "cpu.max": "200000 100000",
            "cpu.weight": expect.stringMatching(/^[1-9]\d*$/),
            "pids.max": "129",
          },
          group: "0::/vmlet-jailed/neighbour",
          uid: expect.stringMatching(/^[1-9]\d+$/),
          capabilities: "0000000000000000",
          inner: "1",
          hogged: expect.stringContaining("ended with 137"),
          refusedForks: 1,
          isNeighbourWell: true,
          outOfMemory: { hog: true, neighbour: false },
          left: "nothing",
        });
      });
    });

    const profiles = { oci: "vmlet-default", cri: "cri-containerd.apparmor.d" } as const;
    test.each(programs === undefined ? (["oci"] as const) : (["oci", "cri"] as const))(
      "containers of engine %s are held to profiles of AppArmor where the kernel has it",
      { timeout: CUT_MS },
      async (engine) => {
        await host?.close();
        host = await EmulatedHost.make(images, registry.host, {
          engine,
          kernelOptions: "security=apparmor apparmor=1",
        });
        await explained("AppArmor", () => apparmor(host!, profiles[engine]));
      },
    );

    /** @param own the profile of containers that ask for none */
    async function apparmor(on: EmulatedHost, own: string): Promise<void> {
      await on.boot();
      const provider = on.provider();
      expect((await provider.getInfo(inTime())).capabilities).toContain("apparmor");
      // Of root's own rights this profile takes one away, and nothing else does.
      const profile = `profile strict flags=(attach_disconnected,mediate_deleted) { file, network, capability, deny /tmp/secret rw, }`;
      const loaded = await on.shell(`echo '${profile}' >/run/strict; apparmor_parser -r /run/strict; echo $?`, SLOWLY);
      expect(loaded).toMatch(/^0$/m);
      const say =
        '{ tr -d "\\\\0" < /proc/self/attr/current; echo > /tmp/secret && echo written; echo > /tmp/other && echo other; } > /dev/termination-log';
      const run = async (id: string, apparmor?: string) => {
        const container = {
          name: "a",
          image: `${insideName(registry.host)}/busybox`,
          command: ["sh", "-c", say],
          ...(apparmor === undefined ? {} : { security: { apparmor } }),
        };
        const spec = { labels: {}, restart_policy: "never" as const, containers: [container] };
        await on.waitFor(
          `the creation of ${id}`,
          CLEAN,
          async () => void (await provider.createPod(id, spec, inTime())),
        );
        let found: ContainerState | undefined;
        await on.waitFor(`what becomes of ${id}`, REST, async () => {
          found = (await provider.getPod(id, inTime())).containers[0];
          must(found?.terminated !== undefined || found?.reason === "CreateContainerError", inspect(found));
        });
        return found?.terminated?.message ?? found?.message;
      };
      const told = {
        usual: await run("usual"),
        asked: await run("asked", "runtime_default"),
        strict: await run("strict", "localhost/strict"),
        unknown: await run("unknown", "localhost/unknown"),
      };
      const usual = `${own} (enforce)\nwritten\nother\n`;
      expect(told).toEqual({
        usual,
        asked: usual,
        strict: "strict (enforce)\nother\n",
        unknown: expect.stringContaining("apparmor profile not found unknown"),
      });
      // Root itself, with all capabilities, may not mount under the usual one.
      const mount = "mount -t tmpfs tmpfs /mnt";
      const tried = await on.shell(
        `
          mkdir -p /mnt; ${mount} && echo free; umount /mnt
          sh -c 'echo "exec ${own}" >/proc/self/attr/exec && exec ${mount}' 2>/dev/null && echo free || echo held`,
        SLOWLY,
      );
      expect(tried.split("\n")).toEqual(["free", "held"]);
    }
  });
