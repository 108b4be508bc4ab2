/**
 * Machines created and deleted in bursts, on each engine: nothing of them may be left. `SOAK_PROCESS`, `SOAK_OCI` and
 * `SOAK_VM` set the number of machines (default 200; emulated VMs take more than a second each).
 */
import { mkdtempSync, readdirSync, readFileSync, rmSync, statSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import type { Engine } from "../../providers/local/engine.ts";
import { createOciEngine } from "../../providers/local/engines/oci/engine.ts";
import { createProcessEngine } from "../../providers/local/engines/process/process.ts";
import { createVmEngine } from "../../providers/local/engines/vm/engine.ts";
import { run } from "../../providers/local/host/command.ts";
import { HostNetwork } from "../../providers/local/network/network.ts";
import { silentLogger } from "../../src/telemetry/logger.ts";
import { systemClock } from "../../src/util/clock.ts";
import { Bench } from "../integration/backend/suite.ts";
import { testNetwork } from "../support/host.ts";
import { leaveOut } from "../support/left-out.ts";
import { busyboxImage, missingForImages, startRegistry, type TestRegistry } from "../support/registry.ts";

interface Subject {
  name: string;
  machines: number;
  burst: number;
  create(
    stateDir: string,
    network: Omit<ReturnType<typeof testNetwork>, "dir">,
    images?: { insecureRegistries: string[] },
  ): Engine;
}

const subjects: Subject[] = [
  {
    name: "process",
    machines: Number(process.env["SOAK_PROCESS"] ?? 200),
    burst: 10,
    create: (stateDir) =>
      createProcessEngine({ stateDir, images: {}, addressPool: "127.64.0.0/10", clock: systemClock }),
  },
  {
    name: "oci",
    machines: Number(process.env["SOAK_OCI"] ?? 200),
    burst: 10,
    create: (stateDir, network, images = { insecureRegistries: [] }) =>
      createOciEngine({ stateDir, clock: systemClock, logger: silentLogger, network, images }),
  },
  {
    name: "vm",
    machines: Number(process.env["SOAK_VM"] ?? 200),
    burst: 2,
    create: (stateDir, network, images = { insecureRegistries: [] }) =>
      createVmEngine({ stateDir, clock: systemClock, logger: silentLogger, network, images }),
  },
];

/** What a machine may leave on this host, as one line each; `marks` are what its names and paths contain. */
async function traces(marks: readonly string[]): Promise<string[]> {
  const lines = async (command: string, args: string[]) => (await run(command, args)).stdout.toString().split("\n");
  const all = [
    ...(await lines("ps", ["-eo", "pid,args"])).map((line) => `process ${line}`),
    ...(await lines("ip", ["-o", "link"])).map((line) => `link ${line}`),
    ...(await lines("ip", ["netns"])).map((line) => `namespace ${line}`),
    ...(await lines("losetup", ["-a"])).map((line) => `loop device ${line}`),
    ...readFileSync("/proc/self/mountinfo", "utf8")
      .split("\n")
      .map((line) => `mount ${line}`),
    ...cgroups("/sys/fs/cgroup").map((path) => `control group ${path}`),
  ];
  return all.filter((line) => marks.some((mark) => line.includes(mark)));
}

function cgroups(root: string, depth = 3): string[] {
  if (depth === 0) return [];
  return readdirSync(root, { withFileTypes: true }).flatMap((entry) =>
    entry.isDirectory() ? [join(root, entry.name), ...cgroups(join(root, entry.name), depth - 1)] : [],
  );
}

/** Every file below, those that are kept on purpose left out: images, templates, tombstones, keys. */
function files(root: string, below = ""): string[] {
  return readdirSync(join(root, below)).flatMap((name) => {
    const path = join(below, name);
    if (/^(?:images|tombstones|vm\/templates|shim-[0-9a-f]+)$/.test(path)) return [];
    return statSync(join(root, path), { throwIfNoEntry: false })?.isDirectory() ? files(root, path) : [path];
  });
}

for (const subject of subjects) {
  const { dir: _dir, ...network } = testNetwork("");
  const probe = subject.create("/nonexistent", network);
  const problems = (await probe.check()).filter(({ fatal }) => fatal).map(({ problem }) => problem);
  const missing = [...problems, ...[missingForImages() ?? []].flat()];
  if (missing.length > 0) {
    leaveOut(`soak, engine ${subject.name}`, missing);
    continue;
  }
  const hasVolumes = probe.capabilities.includes("volumes.empty_dir");
  describe(`engine ${subject.name}`, () => {
    let registry: TestRegistry;
    let bench: Bench;
    const stateDir = mkdtempSync(join(tmpdir(), "vmlet-soak-"));
    beforeAll(async () => {
      registry = await startRegistry();
      await registry.push("t/busybox:1", await busyboxImage());
      bench = new Bench(
        {
          name: subject.name,
          image: `${registry.host}/t/busybox:1`,
          createEngine: (dir) => subject.create(dir, network, { insecureRegistries: [registry.host] }),
          patienceMs: 300_000,
        },
        stateDir,
      );
      await bench.open();
    });
    afterAll(async () => {
      await bench.close();
      await registry.stop();
      await new HostNetwork({ dir: join(stateDir, "network"), ...network }).remove();
      rmSync(stateDir, { recursive: true, force: true });
    });

    test(`${subject.machines} machines in bursts of ${subject.burst} leave nothing`, async () => {
      const burst = async () => {
        const made = await Promise.all(
          Array.from({ length: subject.burst }, () =>
            bench.create({
              ...(hasVolumes ? { volumes: [{ name: "m", type: "empty_dir", medium: "memory" }] } : {}),
              containers: [
                bench.shell("a", "setsid sleep 998 & sleep 1000", {
                  ...(hasVolumes ? { mounts: [{ volume: "m", path: "/m" }] } : {}),
                }),
              ],
            }),
          ),
        );
        // Some are deleted while they start.
        await Promise.all(made.filter((_, index) => index % 4 !== 3).map((id) => bench.reaches(id, "running")));
        await Promise.all(made.map((id) => bench.provider.deletePod(id, { force: true, signal: bench.signal })));
        await Promise.all(made.map((id) => bench.reaches(id, "deleted")));
      };
      // What the first machines make for all that follow: bridge, rules, template.
      await burst();
      const marks = [stateDir, `${network.bridge!}-`, "sleep 998"];
      const before = { traces: await traces(marks), files: files(stateDir) };
      for (let made = subject.burst; made < subject.machines; made += subject.burst) await burst();
      await bench.until(async () => expect(await traces(marks)).toEqual(before.traces));
      expect(files(stateDir)).toEqual(before.files);
      expect(before.traces.filter((line) => !line.startsWith("link"))).toEqual([]);
    });
  });
}
