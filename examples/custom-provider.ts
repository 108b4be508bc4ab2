/**
 * A provider in one small file: a machine is one process of this host. It shows the whole contract without a platform in
 * the way; it isolates nothing and forgets everything when the agent ends. To run it:
 *
 *     nodes:
 *       - name: burst-0
 *         provider: { type: module, module: ./examples/custom-provider.ts, options: { shell: /bin/sh } }
 *
 * A copy that lies elsewhere imports "vmlet/provider-kit".
 */
import { spawn, type ChildProcess } from "node:child_process";
import { constants } from "node:os";
import {
  assertCapable,
  backoffLimits,
  isSubset,
  nextRestart,
  noSuchMachine,
  OutputLog,
  ProviderError,
  requiredCapabilities,
  restartDecision,
  specFingerprint,
  systemClock,
  type ContainerState,
  type Machine,
  type MachineSpec,
  type Provider,
  type RestartBackoff,
} from "../src/provider/kit/index.ts";

/** What every command finds; the specification's own go first. */
const ENVIRONMENT = { PATH: process.env["PATH"] ?? "/usr/bin:/bin", HOME: "/" };

// No capabilities: one container, its logs, its restarts. Each that you add lets pods use more.
const info = { name: "example", version: "1", capabilities: [] };

export function createProvider({ shell = "/bin/sh" }: { shell?: string }): Provider {
  const machines = new Map<string, ProcessMachine>();
  const find = (id: string) => {
    const machine = machines.get(id);
    // The only proof of absence: this map is all there is. A platform that does not answer is `unavailable` instead.
    if (!machine) throw noSuchMachine(id);
    return machine;
  };
  return {
    name: info.name,
    getInfo: async () => info,
    async createPod(id, spec) {
      const existing = machines.get(id);
      // A create that comes late must not revive what was deleted, and a repeated one must not make a second machine.
      if (existing?.isDeleted) throw new ProviderError("gone", `machine ${id} was deleted`);
      if (existing && existing.fingerprint !== specFingerprint(spec))
        throw new ProviderError("conflict", `machine ${id} exists with another spec`);
      if (existing) return existing.seen;
      // What cannot be kept is refused, never left out.
      assertCapable(requiredCapabilities(spec), info.capabilities);
      stopSignal(spec);
      const machine = new ProcessMachine(id, spec, shell);
      machines.set(id, machine);
      machine.start();
      return machine.seen;
    },
    getPod: async (id) => find(id).seen,
    async getPods({ labels, includeDeleted }) {
      const all = [...machines.values()].map((machine) => machine.seen);
      const items = all
        .filter((machine) => includeDeleted || machine.state !== "deleted")
        .filter((machine) => isSubset(labels, machine.labels));
      return { items, revision };
    },
    async stopPod(id, { graceSeconds }) {
      find(id).stop(graceSeconds);
      return find(id).seen;
    },
    async deletePod(id, { force }) {
      // Also of an id that was never seen: its create may still be on the way, and finds the tombstone.
      const machine = machines.get(id) ?? new ProcessMachine(id);
      machines.set(id, machine);
      machine.delete(force ? 0 : undefined);
    },
    async *getLogs(id, container, options) {
      yield* find(id).log(container, options.previous).read(options);
    },
    async close() {
      // Elsewhere machines live on; these are the agent's own children.
      for (const machine of machines.values()) machine.stop(0);
    },
  };
}

/** What asks the process to end. @throws ProviderError for one that this process cannot send */
function stopSignal(spec: MachineSpec): NodeJS.Signals {
  const name = spec.containers[0]?.stop?.signal ?? "SIGTERM";
  if (name in constants.signals) return name as NodeJS.Signals;
  throw new ProviderError("unsupported", `there is no signal ${name} here`, { field: "containers.0.stop.signal" });
}

/** Counts the changes of all machines. */
let revision = 0;
const now = () => new Date().toISOString();

class ProcessMachine {
  /** What the agent is shown. */
  seen: Machine;
  /** From the delete on: whoever creates it afterwards comes too late. */
  isDeleted = false;
  readonly fingerprint: string;
  readonly #spec: MachineSpec | undefined;
  readonly #shell: string;
  /** One for each start of the process. */
  readonly #logs: OutputLog[] = [];
  #child: ChildProcess | undefined;
  #backoff: RestartBackoff | undefined;

  constructor(id: string, spec?: MachineSpec, shell = "") {
    this.#spec = spec;
    this.#shell = shell;
    this.fingerprint = spec ? specFingerprint(spec) : "";
    const waiting = { kind: "main", state: "waiting", ready: false, started: false, restart_count: 0 } as const;
    this.seen = {
      id,
      version: 0,
      revision: ++revision,
      labels: spec?.labels ?? {},
      state: spec ? "creating" : "stopped",
      reachability: "ok",
      sandbox_ready: spec !== undefined,
      created_at: now(),
      // Services would send traffic there.
      addresses: [],
      containers: (spec?.containers ?? []).map(({ name, image }) => ({ ...waiting, name, image, image_id: image })),
    };
  }

  start(): void {
    // An image means nothing here: without a command there is only a process to look at.
    const main = this.#spec!.containers[0]!;
    const { command = [this.#shell, "-c", "sleep infinity"], args = [], env = [], working_dir } = main;
    const [program, ...words] = [...command, ...args];
    const log = new OutputLog(systemClock);
    this.#logs.push(log);
    const child = (this.#child = spawn(program!, words, {
      env: { ...ENVIRONMENT, ...Object.fromEntries(env.map(({ name, value }) => [name, value])) },
      cwd: working_dir,
      stdio: ["ignore", "pipe", "pipe"],
      detached: true, // a process group of its own, so that all of it can be stopped
    }));
    child.stdout.on("data", (data: Buffer) => log.append("stdout", data));
    child.stderr.on("data", (data: Buffer) => log.append("stderr", data));
    const started_at = now();
    const id = `${this.seen.id}-${this.#logs.length}`;
    this.#change({ state: "running", started_at }, { state: "running", ready: true, started: true, started_at, id });
    // A program that cannot be started has no exit code; `close` follows.
    child.on("error", () => undefined);
    child.on("close", (code, signal) => {
      log.end();
      this.#child = undefined;
      this.#ended(signal ? 128 + constants.signals[signal] : code! < 0 ? 127 : code!);
    });
  }

  #ended(exit_code: number): void {
    const { restart_count, id, started_at } = this.seen.containers[0]!;
    const reason = exit_code === 0 ? "Completed" : "Error";
    const terminated = { exit_code, reason, started_at: started_at!, finished_at: now(), id: id! };
    const { containers, restart_policy } = this.#spec!;
    const restarts = restartDecision(containers[0]!, restart_policy, exit_code) !== "no";
    if (this.seen.state !== "running" || !restarts) {
      this.#change({ state: "stopped", stopped_at: now() }, { state: "terminated", ready: false, terminated });
      return;
    }
    const waiting = { state: "waiting", reason: "CrashLoopBackOff", ready: false } as const;
    this.#change({}, { ...waiting, last: terminated, restart_count: restart_count + 1 });
    this.#startAgain(Date.now());
  }

  /** When it is time: the first restart is immediate, the next ones wait longer and longer. */
  #startAgain(finishedAt: number): void {
    if (this.seen.state !== "running") return;
    const next = nextRestart({ backoff: this.#backoff, finishedAt }, backoffLimits(this.#spec!), Date.now());
    if ("until" in next) {
      setTimeout(() => this.#startAgain(finishedAt), next.until - Date.now()).unref();
      return;
    }
    this.#backoff = next.backoff;
    this.start();
  }

  /** Asks first, kills after the grace. Of several stops the one that ends first counts. */
  stop(graceSeconds: number): void {
    if (this.seen.state === "stopped" || this.seen.state === "deleted") return;
    const child = this.#child;
    if (!child) return this.#change({ state: "stopped", stopped_at: now() });
    this.#change({ state: "stopping" });
    const kill = (signal: NodeJS.Signals) => {
      try {
        if (this.#child === child && child.pid) process.kill(-child.pid, signal);
      } catch {
        // It has just ended by itself.
      }
    };
    kill(graceSeconds === 0 ? "SIGKILL" : stopSignal(this.#spec!));
    setTimeout(() => kill("SIGKILL"), graceSeconds * 1000).unref();
  }

  /** Returns at once. When nothing runs any more, what is left is a tombstone. */
  delete(graceSeconds = this.#spec?.termination_grace_s ?? 30): void {
    this.isDeleted = true;
    this.stop(graceSeconds);
    const bury = () => this.seen.state === "deleted" || this.#change({ state: "deleted", deleted_at: now() });
    if (this.#child) this.#child.once("close", bury);
    else bury();
  }

  /** Of the process that runs or ran last, or of the one before it. */
  log(container: string, previous = false): OutputLog {
    const log = this.#logs.at(previous ? -2 : -1);
    if (!log || this.seen.containers[0]?.name !== container)
      throw new ProviderError("not_found", `machine ${this.seen.id} has no such log of a container ${container}`);
    return log;
  }

  /** Every change goes through here, so that version and revision grow. */
  #change(fields: Partial<Machine>, container: Partial<ContainerState> = {}): void {
    const containers = this.seen.containers.map((each) => ({ ...each, ...container }));
    this.seen = { ...this.seen, ...fields, containers, version: this.seen.version + 1, revision: ++revision };
  }
}
