/** A backend of engine cri that is killed and started again: its containerd and its machines go on meanwhile. */
import { execFileSync } from "node:child_process";
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeEach, expect, onTestFinished, test, vi } from "vitest";
import { ContainerState } from "../../../providers/local/engines/cri/api.gen.js";
import { CriClient } from "../../../providers/local/engines/cri/client.ts";
import { CriEngine } from "../../../providers/local/engines/cri/engine.ts";
import { taskExit } from "../../../providers/local/engines/cri/shims.ts";
import { findTool } from "../../../providers/local/host/command.ts";
import { machineHash } from "../../../providers/local/host/machine-hash.ts";
import { NetworkNames } from "../../../providers/local/network/names.ts";
import { HostNetwork } from "../../../providers/local/network/network.ts";
import type { MachineSpec } from "../../../src/provider/machine.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { systemClock } from "../../../src/util/clock.ts";
import { missingForContainerd } from "../../support/containerd.ts";
import { testNetwork } from "../../support/host.ts";
import { leaveOut } from "../../support/left-out.ts";
import { busyboxImage, missingForImages, startRegistry } from "../../support/registry.ts";
import { KillableBackend, livesThroughTheDeathOf, PATIENCE } from "../backend/killable.ts";
import { Bench, LOG_LIMITS } from "../backend/suite.ts";

const missing = [(await missingForContainerd()) ?? [], missingForImages() ?? []].flat();

if (missing.length > 0) leaveOut("a killed backend of engine cri", missing);
else {
  const registry = await startRegistry();
  await registry.push("t/busybox:1", await busyboxImage());
  const image = `${registry.host}/t/busybox:1`;
  const { dir: _dir, ...network } = testNetwork("");
  const images = { insecureRegistries: [registry.host] };
  afterAll(async () => {
    await registry.stop();
    await new HostNetwork({ dir: "/nonexistent/network", ...network }).remove();
  });

  let backend: KillableBackend;
  beforeEach(() => {
    const dir = mkdtempSync(join(tmpdir(), "vmlet-kill-"));
    const made = new KillableBackend(dir, { engine: { type: "cri", network, images } });
    backend = made;
    onTestFinished(async () => {
      await made.kill();
      await removeAll(made.stateDir);
      rmSync(dir, { recursive: true, force: true });
    });
  });

  /** Whatever a failed test has left running goes, too. */
  async function removeAll(stateDir: string): Promise<void> {
    const surroundings = { clock: systemClock, logger: silentLogger, logLimits: LOG_LIMITS };
    const createEngine = () => new CriEngine({ stateDir, network, images, ...surroundings });
    const bench = new Bench({ name: "cri", image, createEngine }, stateDir);
    await bench.open();
    await bench.close();
  }

  const shell = (script: string): MachineSpec => ({
    labels: {},
    restart_policy: "never",
    volumes: [{ name: "v", type: "empty_dir", medium: "disk" }],
    containers: [{ name: "a", image, command: ["sh", "-c", script], mounts: [{ volume: "v", path: "/v" }] }],
  });
  const volume = (id: string) => join(backend.stateDir, "machines", id, "engine/volumes/v");

  test("a container that runs over the backend's death keeps its id, and its log has no hole", async () => {
    await livesThroughTheDeathOf(backend, shell, { inside: "/v/end", path: join(volume("m1"), "end") });
  });

  test("however often the backend is killed while it starts machines, no container runs twice", async () => {
    const ids = Array.from({ length: 4 }, (_, index) => `m${index}`);
    const spec = shell("echo run >> /v/runs; while [ ! -e /v/end ]; do sleep 0.05; done");
    const runs = (id: string) => {
      const file = join(volume(id), "runs");
      return existsSync(file) ? readFileSync(file, "utf8") : "";
    };
    for (const [round, last] of ids.entries()) {
      await backend.start();
      for (const id of ids.slice(0, round + 1)) await backend.call("PUT", `/v1/machines/${id}`, spec);
      // Somewhere in the midst of starting: at once, or when the last one has run.
      if (round % 2 === 1) await vi.waitFor(() => expect(runs(last)).toBe("run\n"), { ...PATIENCE, interval: 1 });
      await backend.kill();
    }
    await backend.start();
    for (const id of ids) {
      await backend.reaches(id, "running");
      expect((await backend.get(id)).containers[0]!.restart_count).toBe(0);
      await vi.waitFor(() => expect(runs(id)).toBe("run\n"), PATIENCE);
    }
  });

  /**
   * Puts a runc first on the PATH that does what it is told to a container, and then keeps its caller waiting: there is
   * `DIR/begun` from then on, until somebody makes `DIR/over`.
   */
  function slowRunc(verb: "start" | "delete"): { begun: string; over: string } {
    const dir = join(backend.stateDir, "../slow");
    mkdirSync(dir);
    const [begun, over] = [join(dir, "begun"), join(dir, "over")];
    const runc = findTool("runc")!;
    const state = `${runc} $(echo "$@" | sed 's/ ${verb} / state /; s/ --force / /')`;
    const script = `#!/bin/sh
case " $* " in *" ${verb} "*) ${state} 2>&1 | grep -q 'container-type": "container"' && slow=1;; esac
${runc} "$@" || exit
if [ -n "$slow" ]; then touch ${begun}; while [ ! -e ${over} ]; do sleep 0.05; done; fi
exit 0
`;
    writeFileSync(join(dir, "runc"), script, { mode: 0o755 });
    onTestFinished(() => writeFileSync(over, ""));
    putFirst(dir);
    return { begun, over };
  }

  function putFirst(folder: string): void {
    const path = process.env["PATH"];
    onTestFinished(() => void (process.env["PATH"] = path));
    process.env["PATH"] = `${folder}:${path}`;
  }

  /**
   * Puts a tool first on the PATH that, told to do something like `pattern`, does nothing and keeps its caller waiting:
   * there is `begun` from then on, until somebody makes `over`. From then on it does what it is told.
   */
  function heldTool(name: "ip" | "nft", pattern: string): { begun: string; over: string } {
    const dir = join(backend.stateDir, "../held");
    mkdirSync(dir);
    const [begun, over] = [join(dir, "begun"), join(dir, "over")];
    const tool = findTool(name)!;
    const script = `#!/bin/sh
case "$1" in -f | -batch) ;; *) exec ${tool} "$@";; esac
told=$(cat)
if [ ! -e ${over} ] && echo "$told" | grep -q '${pattern}'; then
  touch ${begun}
  while [ ! -e ${over} ]; do sleep 0.05; done
  exit 1
fi
echo "$told" | exec ${tool} "$@"
`;
    writeFileSync(join(dir, name), script, { mode: 0o755 });
    onTestFinished(() => writeFileSync(over, ""));
    putFirst(dir);
    return { begun, over };
  }

  /** What the machine's interface is held to, by nft's own word. */
  const sendersRules = (id: string) => {
    const names = new NetworkNames(network.bridge!);
    const asked = ["list", "chain", "netdev", names.table, names.link(id)];
    return execFileSync("nft", asked, { encoding: "utf8" });
  };

  test.each([
    ["ip", " alias [0-9a-f:]* *$"],
    ["nft", "hook ingress device"],
  ] as const)(
    "a container is made beside its machine's rules, and does not begin before them: %s is held, and the backend killed",
    async (tool, pattern) => {
      const { begun, over } = heldTool(tool, pattern);
      await backend.start();
      const spec = shell("echo run >> /v/runs; sleep 1000");
      await backend.call("PUT", "/v1/machines/m1", spec);
      const socket = `/run/vmlet-cri-${machineHash(join(backend.stateDir, "cri"))}/containerd.sock`;
      const client = new CriClient(socket);
      onTestFinished(() => client.close());
      const states = async () => (await client.runtime.listContainers({})).containers.map(({ state }) => state);
      await vi.waitFor(async () => {
        expect(await states()).toEqual([ContainerState.CONTAINER_CREATED]);
        expect(existsSync(begun)).toBe(true);
      }, PATIENCE);
      await backend.kill();
      writeFileSync(over, "");
      expect(await states()).toEqual([ContainerState.CONTAINER_CREATED]);
      await backend.start();
      const { addresses, containers } = await backend.reaches("m1", "running");
      expect(containers[0]!.restart_count).toBe(0);
      await vi.waitFor(() => expect(readFileSync(join(volume("m1"), "runs"), "utf8")).toBe("run\n"), PATIENCE);
      expect(sendersRules("m1")).toContain(`ip saddr ${addresses[0]!.ip} accept`);
    },
  );

  /**
   * Puts a runc first on the PATH that deletes a container and stops containerd, so that the shim's answer is not read
   * before somebody kills it. `DIR/begun` then has containerd's state folder and the container's id.
   */
  function stoppingRunc(): { begun: string } {
    const dir = join(backend.stateDir, "../stopping");
    mkdirSync(dir);
    const begun = join(dir, "begun");
    const runc = findTool("runc")!;
    const script = `#!/bin/sh
case " $* " in *" delete "*) for id; do :; done; ${runc} $(echo "$@" | sed 's/ delete / state /; s/ --force / /') 2>&1 | grep -q 'container-type": "container"' && stop=1;; esac
${runc} "$@" || exit
[ -n "$stop" ] || exit 0
kill -STOP $(cut -d ' ' -f 1 ${join(backend.stateDir, "cri/pid")})
echo "\${PWD%/io.containerd.*} $id" > ${begun}.new
mv ${begun}.new ${begun}
`;
    writeFileSync(join(dir, "runc"), script, { mode: 0o755 });
    putFirst(dir);
    return { begun };
  }

  /** A client of the backend's containerd. */
  function containerd(): CriClient {
    const client = new CriClient(`/run/vmlet-cri-${machineHash(join(backend.stateDir, "cri"))}/containerd.sock`);
    onTestFinished(() => client.close());
    return client;
  }

  const killContainerd = () =>
    process.kill(Number(readFileSync(join(backend.stateDir, "cri/pid"), "latin1").split(" ")[0]), "SIGKILL");

  test("a container whose start was under way when the backend was killed runs, and is told to run", async () => {
    const { over } = slowRunc("start");
    await backend.start();
    await backend.call("PUT", "/v1/machines/m1", shell("echo run >> /v/runs; sleep 1000"));
    await vi.waitFor(() => expect(existsSync(join(volume("m1"), "runs"))).toBe(true), PATIENCE);
    await backend.kill();
    await backend.start();
    writeFileSync(over, "");
    const { containers } = await backend.reaches("m1", "running");
    expect(containers[0]!.restart_count).toBe(0);
    expect(readFileSync(join(volume("m1"), "runs"), "utf8")).toBe("run\n");
  });

  const UNTIL_TOLD = "while [ ! -e /v/end ]; do sleep 0.05; done; exit 7";

  test("a container that ends while neither backend nor containerd runs is told with its exit code", async () => {
    await backend.start();
    await backend.call("PUT", "/v1/machines/m1", shell(UNTIL_TOLD));
    await backend.reaches("m1", "running");
    // The pid of a process of this host is the container's, for it has no users of its own.
    const pid = execFileSync("pgrep", ["--full", "while \\[ ! -e /v/end"], { encoding: "utf8" }).trim();
    await backend.kill();
    killContainerd();
    writeFileSync(join(volume("m1"), "end"), "");
    await vi.waitFor(() => expect(existsSync(`/proc/${pid}`)).toBe(false), PATIENCE);
    await backend.start();
    const { containers } = await backend.reaches("m1", "stopped");
    expect(containers[0]!.terminated).toMatchObject({ exit_code: 7, reason: "Error" });
  });

  test("a container that has ended is told with its exit code, though its sandbox is gone when the next backend begins", async () => {
    await backend.start();
    await backend.call("PUT", "/v1/machines/m1", shell(UNTIL_TOLD));
    await backend.reaches("m1", "running");
    await backend.kill();
    writeFileSync(join(volume("m1"), "end"), "");
    const { runtime } = containerd();
    await vi.waitFor(async () => {
      const { containers } = await runtime.listContainers({});
      expect(containers.map(({ state }) => state)).toEqual([ContainerState.CONTAINER_EXITED]);
    }, PATIENCE);
    const { items } = await runtime.listPodSandbox({});
    await runtime.stopPodSandbox({ podSandboxId: items[0]!.id });
    await backend.start();
    const { containers } = await backend.reaches("m1", "stopped");
    expect(containers[0]!.terminated).toMatchObject({ exit_code: 7, reason: "Error" });
  });

  // The shim's word is gone then: containerd's CRI plugin has the shim delete the task (internal/cri/server/events.go:
  // handleContainerExit), which answers with the exit code, ends the shim's record of it, and only then writes it down
  // (UpdateSync). Until that is written only the killed process knows it, and its log.
  test("a container that ends without a backend is told with its exit code, though containerd is killed before it writes it down", async () => {
    const { begun } = stoppingRunc();
    await backend.start();
    await backend.call("PUT", "/v1/machines/m1", shell(UNTIL_TOLD));
    await backend.reaches("m1", "running");
    await backend.kill();
    writeFileSync(join(volume("m1"), "end"), "");
    await vi.waitFor(() => expect(existsSync(begun)).toBe(true), PATIENCE);
    const [state, id] = readFileSync(begun, "utf8").trim().split(" ");
    const { signal } = new AbortController();
    await vi.waitFor(async () => expect(await taskExit(systemClock, state!, id!, signal)).toBe(undefined), PATIENCE);
    killContainerd();
    await backend.start();
    const { containers } = await backend.reaches("m1", "stopped");
    expect(containers[0]!.terminated).toMatchObject({ exit_code: 7, reason: "Error" });
  });

  test("a container that has ended is told with its exit code, though containerd is killed while it clears it away", async () => {
    const { begun, over } = slowRunc("delete");
    await backend.start();
    await backend.call("PUT", "/v1/machines/m1", shell("while [ ! -e /v/end ]; do sleep 0.05; done; exit 7"));
    await backend.reaches("m1", "running");
    writeFileSync(join(volume("m1"), "end"), "");
    await vi.waitFor(() => expect(existsSync(begun)).toBe(true), PATIENCE);
    killContainerd();
    writeFileSync(over, "");
    const { containers } = await backend.reaches("m1", "stopped");
    expect(containers[0]!.terminated).toMatchObject({ exit_code: 7, reason: "Error" });
  });

  test("a container that has ended before containerd wrote down its start, and was killed, does not run again", async () => {
    const { begun, over } = slowRunc("start");
    await backend.start();
    await backend.call("PUT", "/v1/machines/m1", shell("echo run; exit 7"));
    await vi.waitFor(() => expect(existsSync(begun)).toBe(true), PATIENCE);
    killContainerd();
    writeFileSync(over, "");
    const { containers } = await backend.reaches("m1", "stopped");
    expect(containers[0]!.terminated).toMatchObject({ exit_code: 7, reason: "Error" });
    const { text } = await backend.call("GET", "/v1/machines/m1/containers/a/logs");
    expect(text.match(/run/g)).toHaveLength(1);
  });
}
