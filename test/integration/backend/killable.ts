/** `vmlet backend` as a process of its own, which can be killed and started again. */
import { spawn, type ChildProcess } from "node:child_process";
import { writeFileSync } from "node:fs";
import { request } from "node:http";
import { join } from "node:path";
import { expect, vi } from "vitest";
import type { Machine, MachineSpec } from "../../../src/provider/machine.ts";

export const BACKEND_PROGRAM = join(import.meta.dirname, "../../../src/cli/main.ts");
export const PATIENCE = { timeout: 30_000, interval: 10 };
/** On a host that is twenty times overrun, a backend with a containerd of its own takes most of a minute to begin. */
const START_PATIENCE = { timeout: 120_000, interval: 10 };

export class KillableBackend {
  readonly stateDir: string;
  readonly configFile: string;
  readonly #socket: string;
  readonly #within: readonly string[];
  #process: ChildProcess | undefined;

  /**
   * @param dir is there, and holds all of it; @param more of its configuration; @param within the start of its command
   *   line
   */
  constructor(dir: string, more: object = {}, within: readonly string[] = []) {
    this.#within = within;
    this.stateDir = join(dir, "state");
    this.configFile = join(dir, "backend.yaml");
    this.#socket = join(dir, "api");
    const config = {
      apiVersion: "vmlet.dev/v1",
      kind: "BackendConfig",
      stateDir: this.stateDir,
      listen: { socket: this.#socket },
      ...more,
    };
    writeFileSync(this.configFile, JSON.stringify(config));
  }

  /** @param env beside this process's own */
  async start(env: NodeJS.ProcessEnv = {}): Promise<void> {
    const backend = [process.execPath, BACKEND_PROGRAM, "backend", "--config", this.configFile];
    const [program, ...argv] = [...this.#within, ...backend];
    this.#process = spawn(program!, argv, { stdio: "ignore", env: { ...process.env, ...env } });
    await vi.waitFor(async () => expect((await this.call("GET", "/v1/info")).status).toBe(200), START_PATIENCE);
  }

  /** Resolves when it has ended. */
  async kill(signal: NodeJS.Signals = "SIGKILL"): Promise<void> {
    const child = this.#process;
    if (child === undefined || child.exitCode !== null || child.signalCode !== null) return;
    const ended = new Promise((resolve) => child.once("exit", resolve));
    child.kill(signal);
    await ended;
  }

  call(method: string, path: string, body?: unknown): Promise<{ status: number; body: unknown; text: string }> {
    return new Promise((resolve, reject) => {
      const outgoing = request(
        { socketPath: this.#socket, method, path, headers: { "content-type": "application/json" } },
        (reply) => {
          let text = "";
          reply.on("data", (chunk) => (text += String(chunk)));
          reply.on("end", () => {
            const json = reply.headers["content-type"]?.startsWith("application/json") === true;
            resolve({ status: reply.statusCode!, body: json && text !== "" ? JSON.parse(text) : undefined, text });
          });
          reply.on("error", reject);
        },
      );
      outgoing.on("error", reject);
      outgoing.end(body === undefined ? undefined : JSON.stringify(body));
    });
  }

  async get(id: string): Promise<Machine> {
    return (await this.call("GET", `/v1/machines/${id}`)).body as Machine;
  }

  async reaches(id: string, state: string): Promise<Machine> {
    return await vi.waitFor(async () => {
      const machine = await this.get(id);
      expect(machine.state).toBe(state);
      return machine;
    }, PATIENCE);
  }

  /** The numbers of the lines `n=NUMBER` of the log of container `a`, whatever else the route tells of each. */
  async logNumbers(id: string): Promise<number[]> {
    const { text } = await this.call("GET", `/v1/machines/${id}/containers/a/logs`);
    return text
      .split("\n")
      .flatMap((line) => /(?:^|\D)n=(\d+)/.exec(line)?.[1] ?? [])
      .map(Number);
  }
}

/**
 * Has a container count while its backend is killed and started again: it keeps its id, is no other one's restart, and
 * its log has no hole.
 * @param end a file, as the container sees it and where this test makes it
 */
export async function livesThroughTheDeathOf(
  backend: KillableBackend,
  shell: (script: string) => MachineSpec,
  end: { inside: string; path: string },
): Promise<void> {
  await backend.start();
  const script = `n=0; while [ ! -e ${end.inside} ]; do n=$((n+1)); echo n=$n; sleep 0.01; done; exit 6`;
  await backend.call("PUT", "/v1/machines/m1", shell(script));
  const before = await backend.reaches("m1", "running");
  await backend.kill();
  await backend.start();
  expect((await backend.get("m1")).containers[0]).toMatchObject({
    id: before.containers[0]!.id,
    state: "running",
    restart_count: 0,
  });
  writeFileSync(end.path, "");
  expect((await backend.reaches("m1", "stopped")).containers[0]!.terminated).toMatchObject({ exit_code: 6 });
  const numbers = await backend.logNumbers("m1");
  expect(numbers.length).toBeGreaterThan(1);
  expect(numbers).toEqual(numbers.map((_, index) => index + 1));
}
