/** What every engine of the reference backend must do, with real containers. Capabilities that one lacks are left out. */
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Readable } from "node:stream";
import { afterAll, beforeAll, describe, expect, test, vi } from "vitest";
import type { Capability } from "../../../src/provider/capabilities.ts";
import type {
  ContainerSpec,
  ContainerState,
  Machine,
  MachineSpec,
  MachineState,
} from "../../../src/provider/machine.ts";
import type { LogOptions, StreamOptions } from "../../../src/provider/provider.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { systemClock } from "../../../src/util/clock.ts";
import type { Engine } from "../../../providers/local/engine.ts";
import { LocalProvider } from "../../../providers/local/provider.ts";

export interface SuiteOptions {
  name: string;
  createEngine(stateDir: string): Engine;
  /** An image with a POSIX shell, cat, sleep and seq. */
  image: string;
  /** Containers have process namespaces of their own. */
  ownProcesses?: boolean | undefined;
  /** Longest wait for anything. */
  patienceMs?: number | undefined;
}

/** Of every container's log. */
export const LOG_LIMITS = { maxBytes: 64 * 1024, maxFiles: 3 };

/** One backend on a folder of its own. */
export class Bench {
  readonly options: SuiteOptions;
  readonly stateDir: string;
  readonly signal = new AbortController().signal;
  provider!: LocalProvider;
  #count = 0;

  constructor(options: SuiteOptions, stateDir = mkdtempSync(join(tmpdir(), "vmlet-it-"))) {
    this.options = options;
    this.stateDir = stateDir;
  }

  async open(): Promise<void> {
    this.provider = await LocalProvider.open({
      engine: this.options.createEngine(this.stateDir),
      stateDir: this.stateDir,
      clock: systemClock,
      logger: silentLogger,
      host: "it",
      version: "0",
      logMaxBytes: LOG_LIMITS.maxBytes,
      logMaxFiles: LOG_LIMITS.maxFiles,
    });
  }

  async close(): Promise<void> {
    const { items } = await this.provider.getPods({ labels: {}, signal: this.signal });
    for (const { id } of items) await this.provider.deletePod(id, { force: true, signal: this.signal });
    for (const { id } of items) await this.reaches(id, "deleted");
    await this.provider.close();
    rmSync(this.stateDir, { recursive: true, force: true });
  }

  shell(name: string, script: string, more: Partial<ContainerSpec> = {}): ContainerSpec {
    return { name, image: this.options.image, pull_policy: "if_not_present", command: ["sh", "-c", script], ...more };
  }

  async create(spec: Partial<MachineSpec>): Promise<string> {
    const id = `m${++this.#count}`;
    await this.provider.createPod(
      id,
      { labels: {}, restart_policy: "never", containers: [], ...spec },
      { signal: this.signal },
    );
    return id;
  }

  async get(id: string): Promise<Machine> {
    return await this.provider.getPod(id, { signal: this.signal });
  }

  async container(id: string, name: string): Promise<ContainerState> {
    return (await this.get(id)).containers.find((container) => container.name === name)!;
  }

  async until<T>(look: () => Promise<T> | T): Promise<T> {
    return await vi.waitFor(look, { timeout: this.options.patienceMs ?? 45_000, interval: 10 });
  }

  async reaches(id: string, state: MachineState): Promise<Machine> {
    return await this.until(async () => {
      const machine = await this.get(id);
      expect(machine.state, machine.message).toBe(state);
      return machine;
    });
  }

  async terminated(id: string, name: string): Promise<NonNullable<ContainerState["terminated"]>> {
    return await this.until(async () => {
      const { terminated, message } = await this.container(id, name);
      expect(terminated, message).toBeDefined();
      return terminated!;
    });
  }

  async log(id: string, name: string, options: Partial<LogOptions> = {}): Promise<string[]> {
    const lines: string[] = [];
    for await (const line of this.provider.getLogs(id, name, { signal: this.signal, ...options }))
      lines.push(line.content.toString());
    return lines;
  }

  streams(more: Partial<StreamOptions> = {}): StreamOptions {
    return { signal: this.signal, stdin: false, stdout: true, stderr: true, tty: false, ...more };
  }

  async exec(id: string, name: string, command: string[], more: Partial<StreamOptions> = {}) {
    return await this.provider.exec(id, name, command, this.streams(more));
  }
}

export async function text(stream: Readable | null): Promise<string> {
  const chunks: Buffer[] = [];
  for await (const chunk of stream!) chunks.push(chunk as Buffer);
  return Buffer.concat(chunks).toString();
}

export function backendSuite(options: SuiteOptions, more: (bench: () => Bench) => void = () => {}): void {
  describe(`engine ${options.name}`, () => {
    let bench: Bench;
    const capabilities = new Set(options.createEngine("/nonexistent").capabilities);
    const needs = (...all: Capability[]) => {
      const missing = all.filter((capability) => !capabilities.has(capability));
      return missing.length === 0 ? test : test.skip;
    };

    beforeAll(async () => {
      bench = new Bench(options);
      await bench.open();
    });
    afterAll(() => bench.close());

    test("a container's exit code and its output, stdout and stderr apart, are kept after its end", async () => {
      const id = await bench.create({ containers: [bench.shell("a", "echo out; echo err >&2; exit 7")] });
      expect(await bench.terminated(id, "a")).toMatchObject({ exit_code: 7, reason: "Error" });
      await bench.reaches(id, "stopped");
      expect(await bench.log(id, "a", { stream: "stdout" })).toEqual(["out"]);
      expect(await bench.log(id, "a", { stream: "stderr" })).toEqual(["err"]);
    });

    // The first process of a process namespace does not die of its own SIGKILL.
    if (options.ownProcesses !== true)
      test("an end by signal is code 128 and the signal", async () => {
        const id = await bench.create({ containers: [bench.shell("a", "kill -9 $$")] });
        expect(await bench.terminated(id, "a")).toMatchObject({ exit_code: 137 });
      });

    test("a command that does not exist ends with StartError and names it", async () => {
      const container = { ...bench.shell("a", ""), command: ["/no/such/program"] };
      const id = await bench.create({ containers: [container] });
      expect(await bench.terminated(id, "a")).toMatchObject({
        exit_code: 128,
        reason: "StartError",
        message: expect.stringContaining("/no/such/program"),
      });
    });

    test("a container's environment is its own", async () => {
      const id = await bench.create({
        containers: [
          bench.shell("a", "echo $GREETING; env | grep -c VITEST", { env: [{ name: "GREETING", value: "a b" }] }),
        ],
      });
      await bench.terminated(id, "a");
      expect(await bench.log(id, "a")).toEqual(["a b", "0"]);
    });

    test("a log that outgrows its limit is rotated and keeps its newest lines", async () => {
      const id = await bench.create({ containers: [bench.shell("a", "seq 1 20000")] });
      await bench.terminated(id, "a");
      const lines = await bench.log(id, "a");
      const first = Number(lines[0]);
      expect(lines.length).toBeLessThan(20_000);
      expect(lines).toEqual(Array.from({ length: lines.length }, (_, index) => String(first + index)));
      expect(lines.at(-1)).toBe("20000");
    });

    test("following a log shows each line as it comes and ends with the container", async () => {
      const id = await bench.create({
        containers: [
          bench.shell("a", "echo one; while [ ! -e go ]; do sleep 0.05; done; echo two", { working_dir: "/tmp" }),
        ],
      });
      await bench.until(async () => expect((await bench.container(id, "a")).state).toBe("running"));
      const seen: string[] = [];
      for await (const line of bench.provider.getLogs(id, "a", { signal: bench.signal, follow: true })) {
        seen.push(line.content.toString());
        if (seen.length === 1) await (await bench.exec(id, "a", ["sh", "-c", "touch /tmp/go"])).exit;
      }
      expect(seen).toEqual(["one", "two"]);
      if (options.name === "process") rmSync("/tmp/go", { force: true });
    });

    test("the log of the instance before a restart is kept", async () => {
      const id = await bench.create({
        restart_policy: "on_failure",
        backoff: { initial_ms: 10, max_ms: 10 },
        containers: [bench.shell("a", "echo instance; exit 1")],
      });
      await bench.until(async () => expect((await bench.container(id, "a")).restart_count).toBeGreaterThan(0));
      expect(await bench.log(id, "a", { previous: true })).toEqual(["instance"]);
      await bench.provider.stopPod(id, { graceSeconds: 0, signal: bench.signal });
      await bench.reaches(id, "stopped");
    });

    test("a stop delivers SIGTERM, and the container's own way to end counts", async () => {
      const id = await bench.create({
        containers: [bench.shell("a", "trap 'echo bye; exit 5' TERM; echo ready; while :; do sleep 0.05; done")],
      });
      await bench.until(async () => expect(await bench.log(id, "a")).toEqual(["ready"]));
      await bench.provider.stopPod(id, { graceSeconds: 30, signal: bench.signal });
      await bench.reaches(id, "stopped");
      expect((await bench.container(id, "a")).terminated?.exit_code).toBe(5);
      expect(await bench.log(id, "a", { stream: "stdout" })).toEqual(["ready", "bye"]);
    });

    test("a container that ignores SIGTERM is killed, with all its children", async () => {
      const id = await bench.create({
        containers: [bench.shell("a", "trap '' TERM; (trap '' TERM; while :; do sleep 0.1; done) & echo ready; wait")],
      });
      await bench.until(async () => expect(await bench.log(id, "a")).toEqual(["ready"]));
      await bench.provider.stopPod(id, { graceSeconds: 1, signal: bench.signal });
      await bench.reaches(id, "stopped");
      expect((await bench.container(id, "a")).terminated?.exit_code).toBe(137);
    });

    test("a delete of a running machine leaves its tombstone", async () => {
      const id = await bench.create({ containers: [bench.shell("a", "sleep 1000")] });
      await bench.reaches(id, "running");
      await bench.provider.deletePod(id, { force: true, signal: bench.signal });
      await bench.reaches(id, "deleted");
    });

    needs("init_containers", "multi_container")(
      "init containers run before main containers, which run side by side",
      async () => {
        const id = await bench.create({
          init_containers: [bench.shell("i", "echo init")],
          containers: [bench.shell("a", "sleep 1000"), bench.shell("b", "sleep 1000")],
        });
        await bench.until(async () =>
          expect((await bench.get(id)).containers.map(({ state }) => state)).toEqual([
            "terminated",
            "running",
            "running",
          ]),
        );
        await bench.provider.deletePod(id, { force: true, signal: bench.signal });
      },
    );

    needs("exec")("exec passes streams both ways, keeps stderr apart and gives the exit code", async () => {
      const id = await bench.create({
        containers: [bench.shell("a", "sleep 1000", { env: [{ name: "OWN", value: "mine" }] })],
      });
      await bench.reaches(id, "running");
      const session = await bench.exec(id, "a", ["sh", "-c", "cat; echo $OWN; echo oops >&2; exit 9"], { stdin: true });
      session.stdin!.end("typed\n");
      const [stdout, stderr, { exitCode }] = await Promise.all([
        text(session.stdout),
        text(session.stderr),
        session.exit,
      ]);
      expect([stdout, stderr, exitCode]).toEqual(["typed\nmine\n", "oops\n", 9]);
    });

    needs("exec")("exec in a container that has ended is a conflict", async () => {
      const id = await bench.create({ containers: [bench.shell("a", "true")] });
      await bench.reaches(id, "stopped");
      await expect(bench.exec(id, "a", ["true"])).rejects.toMatchObject({ code: "conflict" });
    });

    needs("exec")("exec carries ten megabytes unharmed to a slow reader", async () => {
      const id = await bench.create({ containers: [bench.shell("a", "sleep 1000")] });
      await bench.reaches(id, "running");
      const session = await bench.exec(id, "a", ["sh", "-c", "head -c 10485760 /dev/zero"]);
      let bytes = 0;
      for await (const chunk of session.stdout!) {
        bytes += (chunk as Buffer).length;
        await new Promise((resolve) => setImmediate(resolve));
      }
      expect(bytes).toBe(10_485_760);
      expect(await session.exit).toEqual({ exitCode: 0 });
    });

    needs("exec")("closing an exec session kills its command", async () => {
      const id = await bench.create({ containers: [bench.shell("a", "sleep 1000")] });
      await bench.reaches(id, "running");
      const session = await bench.exec(id, "a", ["sleep", "1000"]);
      session.close();
      expect((await session.exit).exitCode).toBe(137);
    });

    needs("exec", "tty")("exec on a terminal has one, of the size that was asked for", async () => {
      const id = await bench.create({ containers: [bench.shell("a", "sleep 1000")] });
      await bench.reaches(id, "running");
      const session = await bench.exec(
        id,
        "a",
        ["sh", "-c", "tty >/dev/null && until stty size | grep '37 101'; do sleep 0.05; done; exit 3"],
        {
          stdin: true,
          tty: true,
          stderr: false,
        },
      );
      session.resize(101, 37);
      const [stdout, { exitCode }] = await Promise.all([text(session.stdout), session.exit]);
      expect(stdout).toContain("37 101");
      expect(exitCode).toBe(3);
    });

    needs("attach")("attach talks to the main process, which lives on when the session is closed", async () => {
      const id = await bench.create({
        containers: [bench.shell("a", "while read line; do echo got $line; done", { stdin: true })],
      });
      await bench.reaches(id, "running");
      const session = await bench.provider.attach(id, "a", bench.streams({ stdin: true }));
      session.stdin!.write("hello\n");
      await new Promise<void>((resolve) =>
        session.stdout!.once("data", (chunk: Buffer) => (expect(chunk.toString()).toBe("got hello\n"), resolve())),
      );
      session.close();
      await expect(session.exit).rejects.toMatchObject({ code: "unavailable" });
      expect((await bench.container(id, "a")).state).toBe("running");
      await bench.until(async () => expect(await bench.log(id, "a")).toEqual(["got hello"]));
    });

    needs("attach")("with stdin_once, the end of the first session's input ends the process's input", async () => {
      const id = await bench.create({
        containers: [bench.shell("a", "cat; echo done", { stdin: true, stdin_once: true })],
      });
      await bench.reaches(id, "running");
      const session = await bench.provider.attach(id, "a", bench.streams({ stdin: true }));
      session.stdin!.end("last\n");
      expect(await text(session.stdout)).toBe("last\ndone\n");
      expect(await session.exit).toEqual({ exitCode: 0 });
    });

    needs("attach", "tty")("a main process on a terminal is attached with its size", async () => {
      const id = await bench.create({
        containers: [
          bench.shell("a", "until stty size | grep '30 90'; do sleep 0.05; done; read line", {
            stdin: true,
            tty: true,
          }),
        ],
      });
      await bench.reaches(id, "running");
      const session = await bench.provider.attach(id, "a", bench.streams({ stdin: true, tty: true, stderr: false }));
      session.resize(90, 30);
      let seen = "";
      for await (const chunk of session.stdout!) {
        seen += (chunk as Buffer).toString();
        if (seen.includes("30 90")) break;
      }
      expect(seen).toContain("30 90");
    });

    needs("attach")(
      "an attached client that does not read holds the output back, and then gets all of it",
      async () => {
        const id = await bench.create({
          containers: [bench.shell("a", "read line; head -c 20971520 /dev/zero; echo $? >&2", { stdin: true })],
        });
        await bench.reaches(id, "running");
        const session = await bench.provider.attach(id, "a", bench.streams({ stdin: true, stderr: false }));
        session.stdin!.write("go\n");
        await new Promise((resolve) => session.stdout!.once("readable", resolve));
        expect((await bench.container(id, "a")).state).toBe("running");
        expect((await text(session.stdout)).length).toBe(20_971_520);
        expect((await session.exit).exitCode).toBe(0);
      },
    );

    needs("attach")("a container is stopped although an attached client does not read", async () => {
      const id = await bench.create({
        containers: [bench.shell("a", "while :; do head -c 1048576 /dev/zero; sleep 0.01; done")],
      });
      await bench.reaches(id, "running");
      const session = await bench.provider.attach(id, "a", bench.streams({ stderr: false }));
      await new Promise((resolve) => session.stdout!.once("readable", resolve));
      await bench.provider.stopPod(id, { graceSeconds: 1, signal: bench.signal });
      expect((await bench.reaches(id, "stopped")).containers[0]).toMatchObject({ state: "terminated" });
      session.close();
    });

    needs("exec", "tty")("all that a command writes to its terminal before it ends is received", async () => {
      const id = await bench.create({ containers: [bench.shell("a", "sleep 1000")] });
      await bench.reaches(id, "running");
      const session = await bench.exec(id, "a", ["seq", "1", "20000"], { tty: true, stderr: false });
      const lines = (await text(session.stdout)).trimEnd().split("\r\n");
      expect([lines.length, lines.at(-1)]).toEqual([20_000, "20000"]);
    });

    needs("tty")("all that a main process writes to its terminal before it ends is in its log", async () => {
      const id = await bench.create({ containers: [bench.shell("a", "seq 1 500", { tty: true })] });
      await bench.reaches(id, "stopped");
      // containerd leaves out the carriage returns that a terminal adds.
      const lines = (await bench.log(id, "a")).map((line) => line.trimEnd());
      expect(lines).toEqual(Array.from({ length: 500 }, (_, index) => String(index + 1)));
    });

    needs("stats")("stats tell each running container's memory, and leave out what has ended", async () => {
      const running = await bench.create({ labels: { stats: "yes" }, containers: [bench.shell("a", "sleep 1000")] });
      const ended = await bench.create({ labels: { stats: "yes" }, containers: [bench.shell("a", "true")] });
      await bench.reaches(running, "running");
      await bench.reaches(ended, "stopped");
      const stats = await bench.provider.getStats({ labels: { stats: "yes" }, signal: bench.signal });
      expect(stats.map(({ id }) => id)).toEqual([running]);
      expect(stats[0]!.containers[0]!.memory_working_set_bytes).toBeGreaterThan(0);
    });

    test("a new backend finds machine, log and exit codes whole, and can stop what it did not start", async () => {
      const running = await bench.create({ containers: [bench.shell("a", "echo ready; sleep 1000")] });
      const ended = await bench.create({ containers: [bench.shell("a", "echo bye; exit 4")] });
      await bench.until(async () => expect(await bench.log(running, "a")).toEqual(["ready"]));
      await bench.reaches(ended, "stopped");
      const before = await bench.container(running, "a");
      await bench.provider.close();
      await bench.open();
      expect(await bench.container(running, "a")).toEqual(before);
      expect((await bench.container(ended, "a")).terminated?.exit_code).toBe(4);
      expect(await bench.log(ended, "a")).toEqual(["bye"]);
      await bench.provider.stopPod(running, { graceSeconds: 5, signal: bench.signal });
      await bench.reaches(running, "stopped");
      expect(await bench.log(running, "a")).toEqual(["ready"]);
    });

    more(() => bench);
  });
}
