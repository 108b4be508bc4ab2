/** vmlet's two programs as child processes: the agent, and the reference backend with the engine `process`. */
import { randomBytes } from "node:crypto";
import { mkdir, readFile, writeFile } from "node:fs/promises";
import { networkInterfaces } from "node:os";
import { join } from "node:path";
import { CriClient } from "../../../providers/local/engines/cri/client.ts";
import { machineHash } from "../../../providers/local/host/machine-hash.ts";
import { clientOf, type Client, type Json } from "./client.ts";
import { freePort } from "./ports.ts";
import { failWhenExited, type ManagedProcess, type Sandbox } from "./processes.ts";
import { must, waitFor } from "./wait.ts";

const program = join(import.meta.dirname, "../../../src/cli/main.ts");

/** A program that can be killed at any instant and started again on the same configuration and ports. */
export interface RestartableProcess {
  readonly pid: number;
  /** Sends the signal, waits for the end. */
  kill(signal: NodeJS.Signals): Promise<void>;
  /** Starts it; resolves when it answers. */
  start(): Promise<void>;
  restart(signal: NodeJS.Signals): Promise<void>;
  /** SIGTERM, and SIGKILL when that has not ended it within `graceMs` (default 5 s). */
  stop(graceMs?: number): Promise<void>;
  /** Rejects when the process that was started last ends; never resolves. */
  failed(): Promise<never>;
  /** How the process that was started last has ended, or will. */
  ended(): Promise<{ code: number | null; signal: NodeJS.Signals | null }>;
  logTail(lines?: number): Promise<string>;
}

export interface AgentProcess extends RestartableProcess {
  /** Base address of /livez, /readyz and /metrics. */
  readonly healthUrl: string;
  readonly kubeletPort: number;
}

export interface BackendProcess extends RestartableProcess {
  /** Base address of the Machine API. */
  readonly url: string;
  readonly stateDir: string;
  /** How an agent reaches it, as its configuration says it. */
  readonly provider: { type: "http-vm"; url: string; tokenFile: string };
  readonly client: Client;
  /** Every machine, tombstones left out. */
  machines(): Promise<Json[]>;
  /** Takes one away from its pod. */
  removeMachine(id: string): Promise<void>;
  /** Ends engine cri's own containerd without warning; the backend starts another. */
  killRuntime(): Promise<void>;
}

export interface BackendOptions {
  sandbox: Sandbox;
  /** Tells several in one sandbox apart. Default `backend`. */
  name?: string | undefined;
  /** What to run for an image when a container names no command. */
  images?: Record<string, string[]> | undefined;
  /** The configuration's `engine`. Default: engine `process`. */
  engine?: Json;
  /** Merged over the configuration. */
  config?: Json;
  /** A program, and what it takes before the command that it is to become. */
  within?: readonly string[] | undefined;
}

export async function startBackend({
  sandbox,
  name = "backend",
  images = {},
  engine,
  config: more,
  within,
}: BackendOptions): Promise<BackendProcess> {
  const stateDir = join(sandbox.dir, name);
  await mkdir(stateDir, { recursive: true });
  const port = await freePort();
  const url = `http://127.0.0.1:${port}`;
  const config = join(sandbox.dir, `${name}.yaml`);
  const [token, tokenFile] = [randomBytes(32).toString("hex"), join(sandbox.dir, `${name}-token`)];
  await writeFile(tokenFile, token, { mode: 0o600 });
  await writeFile(
    config,
    JSON.stringify({
      apiVersion: "vmlet.dev/v1",
      kind: "BackendConfig",
      stateDir,
      listen: { address: "127.0.0.1", port },
      tokenFile,
      engine: engine ?? { type: "process", images },
      ...more,
    }),
  );
  const client = clientOf(url, { token });
  const backend = restartable(sandbox, name, ["backend", "--config", config], () => client.get("/v1/info"), { within });
  await backend.start();
  return Object.assign(backend, {
    url,
    stateDir,
    provider: { type: "http-vm" as const, url, tokenFile },
    client,
    async machines() {
      const all: Json[] = [];
      for (let cursor = ""; ;) {
        const page = await client.get(
          `/v1/machines?limit=500${cursor === "" ? "" : `&cursor=${encodeURIComponent(cursor)}`}`,
        );
        all.push(...page.items);
        if (!page.next_cursor) return all;
        cursor = page.next_cursor;
      }
    },
    async removeMachine(id: string) {
      await client.delete(`/v1/machines/${id}?force=true`);
    },
    async killRuntime() {
      const pidOf = async () => Number((await readFile(join(stateDir, "cri/pid"), "utf8")).split(" ")[0]);
      const before = await pidOf();
      process.kill(before, "SIGKILL");
      await waitFor({ what: "the backend to start containerd again", timeoutMs: 60_000 }, async () =>
        must((await pidOf()) !== before, before),
      );
      // Not before then may it be killed again.
      const runtime = new CriClient(`/run/vmlet-cri-${machineHash(join(stateDir, "cri"))}/containerd.sock`);
      await waitFor({ what: "containerd to answer again", timeoutMs: 60_000 }, () =>
        runtime.runtime.status({}, runtime.within(5_000)),
      ).finally(() => runtime.close());
    },
  });
}

export interface AgentOptions {
  sandbox: Sandbox;
  kubeconfig: string;
  nodeName: string;
  provider: Json;
  /** Default impersonate: the credentials may do nothing but be this node. */
  identity?: "direct" | "impersonate" | undefined;
  /** Merged over the node's entry of the configuration. */
  node?: Json;
  /** Further nodes of the same process, as in its configuration. */
  otherNodes?: readonly Json[] | undefined;
  /** Merged over the configuration. */
  config?: Json;
  /** The program's main file. Default: the sources. */
  main?: string | undefined;
  /** Its environment, beside this process's own. */
  env?: NodeJS.ProcessEnv | undefined;
  /** Node's own flags. */
  nodeFlags?: readonly string[] | undefined;
}

export async function startAgent(options: AgentOptions): Promise<AgentProcess> {
  const { sandbox, nodeName } = options;
  const healthPort = await freePort();
  const kubeletPort: number = options.node?.kubelet?.port ?? (await freePort());
  const address = hostAddress();
  const config = join(sandbox.dir, `agent-${nodeName}.yaml`);
  await writeFile(
    config,
    JSON.stringify(
      {
        apiVersion: "vmlet.dev/v1",
        kind: "AgentConfig",
        clusterId: "e2e",
        kubeconfig: options.kubeconfig,
        identity: { mode: options.identity ?? "impersonate" },
        logLevel: "debug",
        health: { address: "127.0.0.1", port: healthPort },
        ...options.config,
        nodes: [
          {
            name: nodeName,
            provider: options.provider,
            addresses: [address],
            capacity: { cpu: "64", memory: "256Gi", pods: "1000", "ephemeral-storage": "1Ti" },
            ...options.node,
            kubelet: { address: "0.0.0.0", ...options.node?.kubelet, port: kubeletPort },
          },
          ...(options.otherNodes ?? []).map((node) => ({ addresses: [address], ...node })),
        ],
      },
      null,
      2,
    ),
  );
  const healthUrl = `http://127.0.0.1:${healthPort}`;
  const health = clientOf(healthUrl);
  const args = ["run", "--config", config];
  const env = options.env && { ...process.env, ...options.env };
  const agent = restartable(sandbox, `agent-${nodeName}`, args, () => health.text("/readyz"), {
    env,
    main: options.main,
    nodeFlags: options.nodeFlags,
  });
  await agent.start();
  return Object.assign(agent, { healthUrl, kubeletPort });
}

/**
 * An IPv4 address of this host that the API server agrees to proxy to: it refuses loopback and link-local ones.
 *
 * @throws Error when the host has no other
 */
export function hostAddress(): string {
  const found = Object.values(networkInterfaces())
    .flatMap((each) => each ?? [])
    .find(({ family, internal, address }) => family === "IPv4" && !internal && !address.startsWith("169.254."));
  if (!found)
    throw new Error(
      "this host has only loopback addresses; the API server does not proxy to those: add a dummy interface",
    );
  return found.address;
}

/**
 * @param args of vmlet
 * @param probe resolves when it answers
 * @param options.env replaces this process's own
 * @param options.main the program's main file
 * @param options.nodeFlags Node's own flags
 */
export function restartable(
  sandbox: Sandbox,
  name: string,
  args: readonly string[],
  probe: () => Promise<unknown>,
  {
    env,
    main = program,
    nodeFlags = [],
    within = [],
  }: {
    env?: NodeJS.ProcessEnv | undefined;
    main?: string | undefined;
    nodeFlags?: readonly string[] | undefined;
    within?: readonly string[] | undefined;
  } = {},
): RestartableProcess {
  let child: ManagedProcess | undefined;
  const current = () => {
    if (!child) throw new Error(`${name} was not started`);
    return child;
  };
  const start = async () => {
    const [command = process.execPath, ...rest] = [...within, process.execPath, ...nodeFlags, main, ...args];
    child = sandbox.spawn(name, command, rest, env && { env });
    const ready = new AbortController();
    try {
      await Promise.race([
        failWhenExited(child),
        waitFor(
          { what: `${name} to be ready (log: ${child.logFile})`, timeoutMs: 60_000, signal: ready.signal },
          probe,
        ),
      ]);
    } finally {
      ready.abort();
    }
  };
  return {
    get pid() {
      return current().pid;
    },
    kill: (signal) => current().kill(signal),
    start,
    async restart(signal) {
      await current().kill(signal);
      await start();
    },
    stop: (graceMs) => current().stop(graceMs),
    failed: () => failWhenExited(current()),
    ended: () => current().exited,
    logTail: (lines) => current().logTail(lines),
  };
}
