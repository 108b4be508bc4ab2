/**
 * `node test/bench/streams.ts [--mib N] [--slow-mib N]`
 *
 * Prints what the kubelet API's streams carry: exec, logs and port-forward, asked of the agent directly and through the API
 * server, with a client that throws away what it receives. Nothing is asserted: the figures depend on the machine.
 */
import { readFileSync } from "node:fs";
import { request as httpsRequest } from "node:https";
import { availableParallelism, cpus } from "node:os";
import { setTimeout as sleep } from "node:timers/promises";
import { parseArgs } from "node:util";
import { WebSocket } from "ws";
import { Pods, serve, shell } from "../e2e/cases/pods.ts";
import { startRealEnvironment } from "../e2e/cases/start.ts";
import { hostAddress } from "../e2e/harness/agent.ts";
import type { KeyPair } from "../e2e/harness/certs.ts";
import { freePort } from "../e2e/harness/ports.ts";
import { memoryGrowth, residentMiB } from "../e2e/kubectl-support.ts";
import { percentiles } from "./measure.ts";

const MiB = 1024 * 1024;
/** The backend keeps 50 MiB of a container's log. */
const logMiB = 40;
const REST_AFTER_BYTES = 16 * MiB;
const REST_MS = 100;

const { values } = parseArgs({
  options: { mib: { type: "string", default: "256" }, "slow-mib": { type: "string", default: "1024" } },
});
const sizeMiB = positive("mib");
/** Read with pauses, to see that what waits does not wait in the agent. */
const slowMiB = positive("slow-mib");

/** Where the client asks, and how paths begin there. */
interface Side {
  name: string;
  url: string;
  exec(command: readonly string[], streams: string): string;
  log: string;
  portForward: string;
}

await using env = await startRealEnvironment({ nodeName: "bench-streams" });
const admin = await env.cluster.clientCertificate("bench-streams", ["system:masters"]);
const pods = new Pods(env.client, "default", env.nodeName);
const port = await freePort();
const server = `require("node:net").createServer((socket) => {
  const chunk = Buffer.alloc(65536);
  let left = ${Math.max(sizeMiB, slowMiB) * MiB};
  const more = () => {
    while (left > 0) { left -= chunk.length; if (!socket.write(chunk)) return socket.once("drain", more); }
    socket.end();
  };
  socket.on("error", () => {});
  more();
}).listen(${port}, "127.0.0.1")`;
await pods.create("shell", { containers: [shell("main", serve)] });
await pods.create("server", { containers: [{ ...shell("main", ""), command: [process.execPath, "-e", server] }] });
await pods.create("writer", {
  restartPolicy: "Never",
  containers: [shell("main", `yes "$(printf %099d 0)" | head -c ${logMiB * MiB}`)],
});
await Promise.all([pods.untilReady("shell"), pods.untilReady("server"), pods.untilPhase("writer", "Succeeded")]);

const query = (command: readonly string[]) => command.map((word) => `command=${encodeURIComponent(word)}`).join("&");
const yes = (streams: string, value: string) => streams.replaceAll("=", `=${value}`);
const sides: Side[] = [
  {
    name: "direct",
    url: `https://${hostAddress()}:${env.agent.kubeletPort}`,
    exec: (command, streams) =>
      `/exec/default/shell/main?${query(command)}&${yes(streams.replace("stdin", "input").replace("stdout", "output"), "1")}`,
    log: "/containerLogs/default/writer/main",
    portForward: `/portForward/default/server?port=${port}`,
  },
  {
    name: "through the API server",
    url: env.cluster.url,
    exec: (command, streams) =>
      `/api/v1/namespaces/default/pods/shell/exec?container=main&${query(command)}&${yes(streams, "true")}`,
    log: "/api/v1/namespaces/default/pods/writer/log",
    portForward: `/api/v1/namespaces/default/pods/server/portforward?ports=${port}`,
  },
];

console.log(`${cpus()[0]?.model ?? "unknown CPU"}, ${availableParallelism()} cores; ${sizeMiB} MiB per transfer`);
console.log(`agent before: ${residentMiB(env.agent.pid).toFixed(0)} MiB`);
for (const side of sides) {
  console.log(`\n${side.name}`);
  const { p50, p90, max } = percentiles(await inTurn(50, () => run(side, ["true"])));
  print(
    "exec of `true`, from open to close",
    `p50 ${p50.toFixed(0)} ms  p90 ${p90.toFixed(0)} ms  max ${max.toFixed(0)} ms`,
  );
  const echo = percentiles(await echoLatencies(side, 500));
  print("a byte through `cat` and back", `p50 ${echo.p50.toFixed(2)} ms  p99 ${echo.p99.toFixed(2)} ms`);
  print("exec, output", rate(sizeMiB, await run(side, ["head", "-c", String(sizeMiB * MiB), "/dev/zero"])));
  print("exec, input", rate(sizeMiB, await feed(side, sizeMiB * MiB)));
  print("logs", rate(logMiB, await fetchLog(side)));
  print("port-forward", rate(sizeMiB, await forward(side)));
  print(
    "100 execs at once, held",
    `${((await hundred(side)) / 1000).toFixed(2)} s from the first to the last one's end`,
  );
  for (const [what, read] of Object.entries({
    "exec, output": slowExec,
    logs: slowLogs,
    "port-forward": slowForward,
  })) {
    const growth = await memoryGrowth(env.agent.pid, () => read(side));
    print(`${what}: ${slowMiB} MiB with pauses`, `the agent grew by ${growth.toFixed(0)} MiB at most`);
  }
}

function positive(option: "mib" | "slow-mib"): number {
  const value = Number(values[option]);
  if (!(value > 0)) throw new Error(`--${option} must be a number above 0, not ${values[option]}`);
  return value;
}

function print(what: string, figure: string): void {
  console.log(`  ${what.padEnd(36)}${figure}`);
}

function rate(mib: number, ms: number): string {
  return `${(mib / (ms / 1000)).toFixed(0)} MiB/s`;
}

async function inTurn(count: number, work: () => Promise<number>): Promise<number[]> {
  const results: number[] = [];
  for (let index = 0; index < count; index++) results.push(await work());
  return results;
}

function pair({ certFile, keyFile }: KeyPair) {
  // The kubelet's certificate is its own: what is measured is speed.
  return { cert: readFileSync(certFile), key: readFileSync(keyFile), rejectUnauthorized: false };
}

/** A socket that is over when the server closes it; rejects when the upgrade is refused. */
function open(
  side: Side,
  path: string,
  protocol: string,
): { socket: WebSocket; opened: Promise<void>; closed: Promise<void> } {
  const socket = new WebSocket(side.url.replace(/^http/, "ws") + path, protocol, {
    ...pair(admin),
    perMessageDeflate: false,
  });
  const opened = new Promise<void>((resolve, reject) => socket.once("open", resolve).once("error", reject));
  const closed = new Promise<void>((resolve, reject) => socket.once("close", () => resolve()).once("error", reject));
  for (const each of [opened, closed]) each.catch(() => undefined);
  return { socket, opened, closed };
}

/** Milliseconds from the request to the end of the command. */
async function run(side: Side, command: readonly string[]): Promise<number> {
  const started = performance.now();
  await open(side, side.exec(command, "stdout="), "v5.channel.k8s.io").closed;
  return performance.now() - started;
}

/** Milliseconds for a hundred sessions that are all open before the first one ends. */
async function hundred(side: Side): Promise<number> {
  const started = performance.now();
  const sessions = Array.from({ length: 100 }, () =>
    open(side, side.exec(["cat"], "stdin=&stdout="), "v5.channel.k8s.io"),
  );
  await Promise.all(sessions.map(({ opened }) => opened));
  for (const { socket } of sessions) socket.send(Buffer.from([255, 0]));
  await Promise.all(sessions.map(({ closed }) => closed));
  return performance.now() - started;
}

/** Milliseconds of each of `count` bytes to a `cat` and back. */
async function echoLatencies(side: Side, count: number): Promise<number[]> {
  const { socket, opened, closed } = open(side, side.exec(["cat"], "stdin=&stdout="), "v5.channel.k8s.io");
  await opened;
  const latencies = await inTurn(count, async () => {
    const started = performance.now();
    const answered = new Promise<void>((resolve) => {
      const look = (data: Buffer) => {
        if (data[0] === 1 && data.length > 1) resolve();
        else socket.once("message", look);
      };
      socket.once("message", look);
    });
    socket.send(Buffer.from([0, 120]));
    await answered;
    return performance.now() - started;
  });
  socket.send(Buffer.from([255, 0]));
  await closed;
  return latencies;
}

/** Milliseconds until a command has taken so many bytes of input and ended. */
async function feed(side: Side, bytes: number): Promise<number> {
  const { socket, opened, closed } = open(
    side,
    side.exec(["sh", "-c", "cat >/dev/null"], "stdin=&stdout="),
    "v5.channel.k8s.io",
  );
  await opened;
  const started = performance.now();
  const message = Buffer.alloc(32 * 1024 + 1);
  for (let left = bytes; left > 0; left -= message.length - 1)
    await new Promise<void>((resolve) => socket.send(message, () => resolve()));
  socket.send(Buffer.from([255, 0]));
  await closed;
  return performance.now() - started;
}

function fetchLog(side: Side, rest: Rest = () => {}): Promise<number> {
  const started = performance.now();
  return new Promise((resolve, reject) => {
    const request = httpsRequest(side.url + side.log, { ...pair(admin), agent: false }, (response) => {
      response.on("data", (chunk: Buffer) => rest(chunk.length, response));
      response.once("end", () => resolve(performance.now() - started));
      response.once("error", reject);
    });
    request.once("error", reject);
    request.end();
  });
}

/** The old WebSocket form, which needs no SPDY in the client. */
async function forward(side: Side, mib = sizeMiB, rest: Rest = () => {}): Promise<number> {
  const started = performance.now();
  const { socket, closed } = open(side, side.portForward, "v4.channel.k8s.io");
  let left = mib * MiB;
  await new Promise<void>((resolve, reject) => {
    socket.on("message", (data: Buffer) => {
      if (data[0] !== 0) return;
      left -= data.length - 1;
      rest(data.length, socket);
      if (left <= 0) resolve();
    });
    closed.then(() => reject(new Error(`the connection closed ${left} bytes early`)), reject);
  });
  socket.terminate();
  return performance.now() - started;
}

/** Told of every piece that came from `source`. */
type Rest = (bytes: number, source: { pause(): void; resume(): void }) => void;

/** Pauses now and then. */
function resting(): Rest {
  let untilRest = REST_AFTER_BYTES;
  return (bytes, source) => {
    untilRest -= bytes;
    if (untilRest > 0) return;
    untilRest = REST_AFTER_BYTES;
    source.pause();
    void sleep(REST_MS).then(() => source.resume());
  };
}

async function slowExec(side: Side): Promise<void> {
  const command = ["head", "-c", String(slowMiB * MiB), "/dev/zero"];
  const { socket, closed } = open(side, side.exec(command, "stdout="), "v5.channel.k8s.io");
  const rest = resting();
  socket.on("message", (data: Buffer) => rest(data.length, socket));
  await closed;
}

/** The log again and again, since the backend keeps no longer ones. */
async function slowLogs(side: Side): Promise<void> {
  const rest = resting();
  for (let mib = 0; mib < slowMiB; mib += logMiB) await fetchLog(side, rest);
}

async function slowForward(side: Side): Promise<void> {
  await forward(side, slowMiB, resting());
}
