/**
 * A provider in one small file: a machine is one process of this host. It shows the whole contract without a platform in
 * the way; it isolates nothing and forgets everything when the agent ends. To run it:
 *
 *     nodes:
 *       - name: burst-0
 *         provider: { type: module, module: ./examples/custom-provider.ts, options: { shell: /bin/sh } }
 */
import { spawn, type ChildProcess } from "node:child_process";
import {
  assertCapable,
  ProviderError,
  requiredCapabilities,
  specFingerprint,
  type LogLine,
  type Machine,
  type MachineSpec,
  type Provider,
} from "../src/provider/kit/index.ts";

interface Entry {
  machine: Machine;
  fingerprint: string;
  /** One list for each start of the process. */
  logs: LogLine[][];
  child?: ChildProcess;
}

export function createProvider(options: { shell?: string }): Provider {
  const entries = new Map<string, Entry>();
  let revision = 0;
  const now = () => new Date().toISOString();
  /** Every change goes through here, so that version and revision grow. */
  const change = (entry: Entry, fields: Partial<Machine>) =>
    (entry.machine = { ...entry.machine, ...fields, version: entry.machine.version + 1, revision: ++revision });
  const find = (id: string) => {
    const entry = entries.get(id);
    // The only proof of absence: this map is all there is.
    if (!entry) throw new ProviderError("not_found", `there is no machine ${id}`);
    return entry;
  };
  const state = (entry: Entry, fields: object) => [{ ...entry.machine.containers[0]!, ...fields }];

  function start(entry: Entry, spec: MachineSpec): void {
    const { command = [options.shell ?? "/bin/sh", "-c", "sleep infinity"], args = [], env = [] } = spec.containers[0]!;
    const started_at = now();
    const log: LogLine[] = [];
    entry.logs.push(log);
    const child = (entry.child = spawn(command[0]!, [...command.slice(1), ...args], {
      env: Object.fromEntries(env.map((e) => [e.name, e.value])),
      detached: true,
    }));
    for (const stream of ["stdout", "stderr"] as const) {
      child[stream].on("data", (data: Buffer) => {
        const lines = data.toString().replace(/\n$/, "").split("\n");
        log.push(
          ...lines.map((line) => ({
            at: now().replace("Z", "000000Z"),
            stream,
            partial: false,
            content: Buffer.from(line),
          })),
        );
      });
    }
    change(entry, {
      state: "running",
      sandbox_ready: true,
      started_at,
      containers: state(entry, {
        state: "running",
        ready: true,
        started: true,
        started_at,
        id: `${entry.machine.id}-${revision}`,
      }),
    });
    child.on("error", () => ended(entry, spec, 127, started_at));
    child.on("exit", (code) => ended(entry, spec, code ?? 137, started_at));
  }

  function ended(entry: Entry, spec: MachineSpec, exit_code: number, started_at: string): void {
    const terminated = {
      exit_code,
      reason: exit_code === 0 ? "Completed" : "Error",
      started_at,
      finished_at: now(),
      id: entry.machine.containers[0]!.id!,
    };
    const again =
      entry.machine.state === "running" &&
      (spec.restart_policy === "always" || (spec.restart_policy === "on_failure" && exit_code !== 0));
    const { restart_count } = entry.machine.containers[0]!;
    if (entry.machine.state === "deleted") return;
    if (!again)
      change(entry, {
        state: "stopped",
        stopped_at: now(),
        containers: state(entry, { state: "terminated", ready: false, terminated }),
      });
    else {
      change(entry, {
        containers: state(entry, {
          state: "waiting",
          reason: "CrashLoopBackOff",
          ready: false,
          last: terminated,
          restart_count: restart_count + 1,
        }),
      });
      setTimeout(
        () => entry.machine.state === "running" && start(entry, spec),
        Math.min(300_000, 10_000 * 2 ** restart_count),
      );
    }
  }

  function stop(entry: Entry, graceSeconds: number): void {
    if (["stopped", "deleted"].includes(entry.machine.state)) return;
    change(entry, { state: "stopping" });
    const kill = (signal: NodeJS.Signals) => entry.child?.exitCode === null && process.kill(-entry.child.pid!, signal);
    if (entry.child?.exitCode !== null || entry.child.pid === undefined)
      change(entry, { state: "stopped", stopped_at: now() });
    else if (graceSeconds === 0) kill("SIGKILL");
    else {
      kill("SIGTERM");
      setTimeout(() => kill("SIGKILL"), graceSeconds * 1000).unref();
    }
  }

  const info = { name: "example", version: "1", capabilities: [] };
  return {
    name: info.name,
    getInfo: () => Promise.resolve(info),
    async createPod(id, spec) {
      const existing = entries.get(id);
      const fingerprint = specFingerprint(spec);
      // A late repetition of a create must not revive what was deleted, and must not make a second machine.
      if (existing?.machine.state === "deleted") throw new ProviderError("gone", `machine ${id} was deleted`);
      if (existing && existing.fingerprint !== fingerprint)
        throw new ProviderError("conflict", `machine ${id} exists with another spec`);
      if (existing) return existing.machine;
      assertCapable(requiredCapabilities(spec), info.capabilities);
      const { name, image } = spec.containers[0]!;
      const container = {
        name,
        image,
        image_id: image,
        kind: "main",
        state: "waiting",
        ready: false,
        started: false,
        restart_count: 0,
      } as const;
      const machine: Machine = {
        id,
        version: 0,
        revision: 0,
        labels: spec.labels,
        state: "creating",
        reachability: "ok",
        sandbox_ready: false,
        created_at: now(),
        addresses: [{ ip: "127.0.0.1" }],
        containers: [container],
      };
      const entry: Entry = { machine, fingerprint, logs: [] };
      entries.set(id, entry);
      start(entry, spec);
      return entry.machine;
    },
    getPod: async (id) => find(id).machine,
    async getPods({ labels, includeDeleted }) {
      const wanted = ({ machine }: Entry) =>
        Object.entries(labels).every(([key, value]) => machine.labels[key] === value) &&
        (includeDeleted || machine.state !== "deleted");
      return { items: [...entries.values()].filter(wanted).map((entry) => entry.machine), revision };
    },
    async stopPod(id, { graceSeconds }) {
      stop(find(id), graceSeconds);
      return find(id).machine;
    },
    async deletePod(id, { force }) {
      const entry = entries.get(id) ?? {
        machine: {
          id,
          version: 0,
          revision: 0,
          labels: {},
          state: "stopped",
          reachability: "ok",
          sandbox_ready: false,
          created_at: now(),
          addresses: [],
          containers: [],
        },
        fingerprint: "",
        logs: [],
      };
      entries.set(id, entry);
      if (entry.machine.state === "deleted") return;
      stop(entry, force ? 0 : 30);
      if (entry.machine.state !== "stopped") await new Promise((resolve) => entry.child!.once("exit", resolve));
      change(entry, { state: "deleted", deleted_at: now() });
    },
    async *getLogs(id, container, { follow, previous, tail, since, stream, limitBytes = Infinity, signal }) {
      const entry = find(id);
      if (entry.machine.containers[0]?.name !== container)
        throw new ProviderError("not_found", `machine ${id} has no container ${container}`);
      const log = entry.logs.at(previous ? -2 : -1) ?? [];
      const isWanted = (line: LogLine) =>
        (since === undefined || line.at >= since) && (stream === undefined || line.stream === stream);
      const past = log.filter(isWanted);
      let left = limitBytes;
      let read = log.length;
      for (
        let lines = past.slice(tail === undefined ? 0 : Math.max(0, past.length - tail));
        ;
        lines = log.slice(read).filter(isWanted)
      ) {
        read = log.length;
        for (const line of lines) {
          const content = line.content.subarray(0, left);
          left -= content.length + 1;
          yield { ...line, content, partial: content.length < line.content.length };
          if (left <= 0) return;
        }
        const isRunning = entry.machine.containers[0]?.state === "running" && log === entry.logs.at(-1);
        if (!follow || signal.aborted || (!isRunning && read === log.length)) return;
        await new Promise((resolve) => setTimeout(resolve, 100));
      }
    },
    async close() {
      for (const entry of entries.values()) stop(entry, 0);
    },
  };
}
