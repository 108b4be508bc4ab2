/**
 * `node test/bench/side-by-side.ts [--rounds N] [--at-once N]`
 *
 * Engines `oci` and `cri`, and the calls of engine cri's containerd by themselves, in one run and in turn: what else the
 * machine does falls on all of them alike. Each round makes so many machines at once, runs a command in each, and deletes
 * them. Prints medians and minima of all rounds, and how they compare; nothing is asserted.
 */
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { parseArgs } from "node:util";
import type { Engine } from "../../providers/local/engine.ts";
import { machineHash } from "../../providers/local/host/machine-hash.ts";
import { LocalProvider } from "../../providers/local/provider.ts";
import { silentLogger } from "../../src/telemetry/logger.ts";
import { systemClock } from "../../src/util/clock.ts";
import { createContainerEngine, engineOnThisHost, removeEngine } from "../support/engines.ts";
import { testNetwork } from "../support/host.ts";
import { busyboxImage, startRegistry } from "../support/registry.ts";
import { plainCri } from "./plain-cri.ts";

const COMMAND = ["sleep", "100000"];
const STEPS = ["running", "exec", "delete"] as const;
type Times = Record<(typeof STEPS)[number], number[]>;

const { values } = parseArgs({
  options: { rounds: { type: "string", default: "15" }, "at-once": { type: "string", default: "1" } },
});
const atOnce = Number(values["at-once"]);
const signal = new AbortController().signal;

async function timed(work: () => Promise<unknown>): Promise<number> {
  const start = performance.now();
  await work();
  return performance.now() - start;
}

interface Host {
  engine: Engine;
  stateDir: string;
  live(): Promise<Times>;
  stop(): Promise<void>;
}

async function host(name: "oci" | "cri", registry: string): Promise<Host> {
  const { missing } = await engineOnThisHost(name);
  if (missing.length > 0) throw new Error(`engine ${name} cannot run here: ${missing.join(", ")}`);
  const stateDir = mkdtempSync(join(tmpdir(), `vmlet-side-${name}-`));
  const { dir: _dir, ...network } = testNetwork("");
  const engine = createContainerEngine(name, { stateDir, network, images: { insecureRegistries: [registry] } });
  const options = { engine, stateDir, clock: systemClock, logger: silentLogger, host: "bench", version: "0" };
  const provider = await LocalProvider.open(options);
  const container = { name: "a", image: `${registry}/t/busybox:1`, pull_policy: "if_not_present" as const };
  let serial = 0;
  /** By its events: no time between two looks is part of the figures. */
  const reaches = async (id: string, wanted: string, since: number) => {
    const ended = new AbortController();
    for await (const { machine } of provider.watchPods(since, { labels: {}, signal: ended.signal })) {
      if (machine?.id !== id) continue;
      if (machine.state === "failed") throw new Error(`${name}: ${machine.message}`);
      if (machine.state === wanted) return ended.abort();
    }
  };
  const revision = async () => (await provider.getPods({ labels: {}, signal })).revision;
  return {
    engine,
    stateDir,
    async live() {
      const ids = Array.from({ length: atOnce }, () => `s${serial++}`);
      const each = (work: (id: string) => Promise<unknown>) => Promise.all(ids.map((id) => timed(() => work(id))));
      const before = await revision();
      const running = await each(async (id) => {
        const isRunning = reaches(id, "running", before);
        const spec = { labels: {}, restart_policy: "never" as const, containers: [{ ...container, command: COMMAND }] };
        await provider.createPod(id, spec, { signal });
        await isRunning;
      });
      const exec: number[] = [];
      for (const id of ids)
        exec.push(
          await timed(async () => {
            const options = { signal, stdin: false, stdout: true, stderr: true, tty: false };
            const streams = await provider.exec(id, "a", ["true"], options);
            streams.stdout?.resume();
            streams.stderr?.resume();
            await streams.exit;
          }),
        );
      const then = await revision();
      const deleted = await each(async (id) => {
        const isDeleted = reaches(id, "deleted", then);
        await provider.deletePod(id, { force: true, signal });
        await isDeleted;
      });
      return { running, exec, delete: deleted };
    },
    async stop() {
      await provider.close();
      await engine.close();
      await removeEngine(name, { stateDir, network });
      rmSync(stateDir, { recursive: true, force: true });
    },
  };
}

function middle(times: readonly number[]): number {
  return times.toSorted((a, b) => a - b)[Math.floor((times.length - 1) / 2)] ?? Number.NaN;
}

const registry = await startRegistry();
await registry.push("t/busybox:1", await busyboxImage());
const hosts = { oci: await host("oci", registry.host), cri: await host("cri", registry.host) };
const all: Record<"oci" | "cri" | "containerd alone", Times> = {
  oci: { running: [], exec: [], delete: [] },
  cri: { running: [], exec: [], delete: [] },
  "containerd alone": { running: [], exec: [], delete: [] },
};
const socket = `/run/vmlet-cri-${machineHash(join(hosts.cri.stateDir, "cri"))}/containerd.sock`;
/** Whatever was made goes, also when it is interrupted. */
let isOver = false;
for (const name of ["SIGINT", "SIGTERM"] as const) process.once(name, () => (isOver = true));
let rounds = 0;
try {
  for (let round = -1; round < Number(values.rounds) && !isOver; round++) {
    const figures = {
      oci: await hosts.oci.live(),
      cri: await hosts.cri.live(),
      "containerd alone": await plain(),
    };
    // The first one has brought the image.
    if (round < 0) continue;
    rounds++;
    for (const [name, times] of Object.entries(figures))
      for (const step of STEPS) all[name as keyof typeof all][step].push(...times[step]);
  }
} finally {
  await hosts.oci.stop();
  await hosts.cri.stop();
  await registry.stop();
}

async function plain(): Promise<Times> {
  const { location } = (await hosts.cri.engine.images!.find(`${registry.host}/t/busybox:1`))!;
  const { runningMs, execMs, deleteMs } = await plainCri(socket, location, COMMAND, atOnce);
  return { running: runningMs, exec: execMs, delete: deleteMs };
}

console.log(`${rounds} rounds of ${atOnce} at once; milliseconds, median / least`);
for (const step of rounds === 0 ? [] : STEPS) {
  const [oci, cri, alone] = [all.oci[step], all.cri[step], all["containerd alone"][step]];
  const shown = Object.entries(all).map(
    ([name, times]) => `${name} ${middle(times[step]).toFixed(0)} / ${Math.min(...times[step]).toFixed(0)}`,
  );
  // Round by round: what the machine does besides is the same for both, nearly.
  const above = middle(cri.map((ms, index) => ms - alone[index]!));
  const ratio = middle(cri.map((ms, index) => ms / oci[index]!));
  console.log(
    `${step.padEnd(8)} ${shown.join(", ")}; cri is ${above.toFixed(0)} ms above containerd, ${ratio.toFixed(2)} x oci`,
  );
}
process.exit(0);
