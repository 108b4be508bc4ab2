/** What a backend makes of its surroundings before the engine sees them. */
import { spawnSync } from "node:child_process";
import { randomBytes } from "node:crypto";
import { mkdirSync, mkdtempSync, readFileSync, realpathSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, onTestFinished, test, vi } from "vitest";
import { type RunningBackend, startBackend } from "../../../providers/local/backend.ts";
import { Cgroup } from "../../../providers/local/bundle/cgroup.ts";
import { parseBackendConfig } from "../../../providers/local/config.ts";
import { OciEngine } from "../../../providers/local/engines/oci/engine.ts";
import { mountsBelow } from "../../../providers/local/host/mounts.ts";
import { allProcesses, processArguments } from "../../../providers/local/host/proc.ts";
import { machineHash } from "../../../providers/local/host/machine-hash.ts";
import { HostNetwork } from "../../../providers/local/network/network.ts";
import type { MachineSpec } from "../../../src/provider/machine.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { systemClock } from "../../../src/util/clock.ts";
import { testNetwork } from "../../support/host.ts";
import { leaveOut } from "../../support/left-out.ts";
import { lowestOomScore } from "../../support/oom-score.ts";
import { busyboxImage, missingForImages, startRegistry, type TestRegistry } from "../../support/registry.ts";

const { dir: _dir, ...network } = testNetwork("");
const engine = new OciEngine({ stateDir: "/nonexistent", clock: systemClock, logger: silentLogger, network });
const problems = (await engine.check()).filter(({ fatal }) => fatal).map(({ problem }) => problem);
const missing = [...problems, ...[missingForImages() ?? []].flat()];
const signal = new AbortController().signal;

let dir: string;
let registry: TestRegistry;
let backend: RunningBackend;

async function serve(stateDir: string, more: object = {}): Promise<void> {
  const config = {
    apiVersion: "vmlet.dev/v1",
    kind: "BackendConfig",
    stateDir,
    listen: { socket: join(dir, "api.sock") },
    engine: { type: "oci", network, images: { insecureRegistries: [registry.host] } },
    ...more,
  };
  const surroundings = { clock: systemClock, logger: silentLogger, version: "0" };
  backend = await startBackend(parseBackendConfig(JSON.stringify(config), "test"), surroundings);
}

const until = (look: () => Promise<void>) => vi.waitFor(look, { timeout: 20_000, interval: 10 });

/** What container `a` prints until its end; the machine is deleted then. */
async function run(spec: Omit<MachineSpec, "labels">): Promise<string> {
  const { provider } = backend;
  await provider.createPod("m", { labels: {}, ...spec }, { signal });
  const state = async () => (await provider.getPod("m", { signal })).state;
  await until(async () => expect(await state()).toBe("stopped"));
  let output = "";
  for await (const line of provider.getLogs("m", "a", { signal })) output += `${line.content.toString()}\n`;
  await provider.deletePod("m", { force: true, signal });
  await until(async () => expect(await state()).toBe("deleted"));
  return output;
}

if (missing.length > 0) {
  leaveOut("a backend of engine oci", missing);
} else {
  beforeEach(async () => {
    dir = realpathSync(mkdtempSync(join(tmpdir(), "vmlet-serve-")));
    registry = await startRegistry();
    await registry.push("t/busybox:1", await busyboxImage());
  });
  afterEach(async () => {
    await backend.close();
    await registry.stop();
    await new HostNetwork({ dir: "/nonexistent/network", ...network }).remove();
    rmSync(dir, { recursive: true, force: true });
  });

  test("containers of any user work, whatever the umask with which the backend was started", async () => {
    const before = process.umask(0o077);
    onTestFinished(() => void process.umask(before));
    await serve(join(dir, "state"));
    const output = await run({
      restart_policy: "never",
      volumes: [
        { name: "e", type: "empty_dir", medium: "disk" },
        {
          name: "f",
          type: "files",
          version: "1",
          files: [{ path: "sub/k", mode: 0o644, content_b64: Buffer.from("file\n").toString("base64") }],
        },
      ],
      containers: [
        {
          name: "a",
          image: `${registry.host}/t/busybox:1`,
          command: ["sh", "-c", "cat /f/sub/k; echo own > /e/x && cat /e/x; cat /etc/hostname > /dev/null && umask"],
          security: { user: 1000 },
          mounts: [
            { volume: "e", path: "/e" },
            { volume: "f", path: "/f" },
          ],
        },
      ],
    });
    expect(output).toBe("file\nown\n0022\n");
  });

  test("the kernel kills containers before their shims, and these with the backend last", async () => {
    const score = (pid: number | "self") => readFileSync(`/proc/${pid}/oom_score_adj`, "utf8");
    const before = score("self");
    const lowest = lowestOomScore();
    onTestFinished(() => writeFileSync("/proc/self/oom_score_adj", before));
    const stateDir = join(dir, "state");
    await serve(stateDir);
    const { provider } = backend;
    const containers = [{ name: "a", image: `${registry.host}/t/busybox:1`, command: ["sleep", "7357"] }];
    await provider.createPod("m", { labels: {}, restart_policy: "never", containers }, { signal });
    await until(async () => expect((await provider.getPod("m", { signal })).state).toBe("running"));
    const having = async (text: string) => {
      const all = await Promise.all(
        (await allProcesses()).map(async ({ pid }) => ({ pid, args: (await processArguments(pid)) ?? "" })),
      );
      return all.filter(({ args }) => args.includes(text)).map(({ pid }) => score(pid));
    };
    const shims = await having(`${stateDir}/shim-`);
    expect(shims.length).toBeGreaterThan(0);
    expect(new Set([...shims, score("self")])).toEqual(new Set([lowest]));
    expect(new Set(await having("sleep\x007357\0"))).toEqual(new Set(["1000\n"]));
    await provider.deletePod("m", { force: true, signal });
    await until(async () => expect((await provider.getPod("m", { signal })).state).toBe("deleted"));
  });

  test("what a machine is told in confidence is on no disk, and its containers have it", async () => {
    const secret = randomBytes(20).toString("hex");
    const stateDir = join(dir, "state");
    await serve(stateDir);
    const { provider } = backend;
    const b64 = (text: string) => Buffer.from(text).toString("base64");
    await provider.createPod(
      "m",
      {
        labels: {},
        restart_policy: "never",
        volumes: [
          {
            name: "f",
            type: "files",
            version: "1",
            files: [
              { path: "word", mode: 0o400, content_b64: b64(secret) },
              { path: "run.sh", mode: 0o755, content_b64: b64("#!/bin/sh\nwc -c </f/word\necho ${#TOKEN}\n") },
            ],
          },
        ],
        containers: [
          {
            name: "a",
            image: `${registry.host}/t/busybox:1`,
            command: ["sh", "-c", "/f/run.sh; exec sleep 1000"],
            env: [{ name: "TOKEN", value: secret }],
            mounts: [{ volume: "f", path: "/f" }],
          },
        ],
      },
      { signal },
    );
    await until(async () => {
      const [line, second] = await Array.fromAsync(provider.getLogs("m", "a", { signal }));
      expect([line, second].map((each) => each?.content.toString().trim())).toEqual(["40", "40"]);
    });
    const exec = await provider.exec("m", "a", ["sh", "-c", "exit $((${#TOKEN} + 2))"], {
      ...{ signal, tty: false, stdin: false, stdout: true, stderr: true },
    });
    expect((await exec.exit).exitCode).toBe(42);
    const probe = join(stateDir, "probe");
    writeFileSync(probe, secret);
    const { stdout } = spawnSync("grep", ["-rlsE", `${secret}|${b64(secret).slice(0, 50)}`, stateDir], {
      encoding: "utf8",
    });
    expect(stdout.trim().split("\n")).toEqual([probe]);
    await provider.deletePod("m", { force: true, signal });
    await until(async () => expect((await provider.getPod("m", { signal })).state).toBe("deleted"));
  });

  test("machines together have no more memory than the owner of the host gives them", async () => {
    const stateDir = join(dir, "state");
    await serve(stateDir, { capacity: { memory: "64Mi" } });
    expect(await new Cgroup(`/vmlet-${machineHash(realpathSync(stateDir))}`).memoryLimit()).toBe(64 * 1024 ** 2);
    // The machine has no limit of its own.
    const script = "dd if=/dev/zero of=/dev/null bs=100M count=1 2>/dev/null; echo $?";
    const containers = [{ name: "a", image: `${registry.host}/t/busybox:1`, command: ["sh", "-c", script] }];
    expect(await run({ restart_policy: "never", containers })).toBe("137\n");
  });

  test("a machine is removed from a state directory that is reached by a symbolic link", async () => {
    mkdirSync(join(dir, "real"));
    symlinkSync(join(dir, "real"), join(dir, "link"));
    await serve(join(dir, "link/state"));
    await run({
      restart_policy: "never",
      containers: [{ name: "a", image: `${registry.host}/t/busybox:1`, command: ["true"] }],
    });
    expect(await mountsBelow(join(dir, "real"))).toEqual([]);
  });
}
