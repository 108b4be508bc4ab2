/** The stand-in for web servers' images, where it may not have the image's port. */
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdirSync, mkdtempSync, rmSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { text } from "node:stream/consumers";
import { afterEach, beforeEach, expect, test } from "vitest";
import type { HostPlan } from "../../../providers/local/engine.ts";
import { createProcessEngine } from "../../../providers/local/engines/process/process.ts";
import { systemClock } from "../../../src/util/clock.ts";

let dir: string;
const open: (() => unknown)[] = [];
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), "vmlet-stand-ins-"));
});
afterEach(async () => {
  for (const close of open.splice(0)) await close();
  rmSync(dir, { recursive: true, force: true });
});

/** A machine with an nginx whose port 80 another program has, or this user may not have. */
async function machineWithoutPort80() {
  const stateDir = { stateDir: dir, images: {}, standIns: true };
  const engine = createProcessEngine({ ...stateDir, addressPool: "127.64.0.0/10", clock: systemClock });
  const spec = { name: "m", labels: {}, containers: [{ name: "web", image: "nginx" }] };
  const home = { id: "m", spec, dir, secretDir: dir, socketPath: (name: string) => join(dir, name) };
  const sandbox = await engine.open(home as unknown as Parameters<typeof engine.open>[0], AbortSignal.timeout(60_000));
  const other = createServer((socket) => socket.end("HTTP/1.1 200 OK\r\n\r\nanother program"));
  // Whoever may not listen there either needs no other program to be kept out.
  await new Promise<unknown>((resolve) => {
    other.once("error", resolve).listen(80, sandbox.addresses[0], () => resolve(undefined));
  });
  open.push(() => other.listening && other.close());
  const ref = { name: "web", attempt: 0, id: "m-web-0", dir: join(dir, "web") };
  mkdirSync(ref.dir);
  const container = { spec: spec.containers[0]!, kind: "main" as const, image: undefined, imageVolumes: {} };
  const { argv, env, cwd } = (await sandbox.launch({ ...ref, ...container, target: undefined })) as HostPlan;
  const child = spawn(argv[0]!, argv.slice(1), { env, cwd, stdio: ["ignore", "pipe", "inherit"] });
  const ended = once(child, "exit");
  open.push(async () => {
    child.kill("SIGKILL");
    await ended;
  });
  const [firstLine] = (await once(child.stdout.setEncoding("utf8"), "data")) as [string];
  return { sandbox, firstLine, child, ended };
}

test("its log says which port it serves on instead, and why", async () => {
  const { firstLine, sandbox } = await machineWithoutPort80();
  expect(firstLine).toMatch(/^vmlet's stand-in for image nginx serves on [\d.]+:\d+ instead of port 80, because /);
  expect(firstLine).toContain(sandbox.addresses[0]);
});

test.each(["address", "loopback"] as const)("who dials the image's port (%s) reaches it", async (target) => {
  const { sandbox } = await machineWithoutPort80();
  const socket = await sandbox.dial(80, target, AbortSignal.timeout(60_000));
  socket.end("GET / HTTP/1.0\r\n\r\n");
  expect(await text(socket)).toContain("This is vmlet's stand-in for image nginx");
});

test("it ends with status 0 when it is told to stop", async () => {
  const { child, ended } = await machineWithoutPort80();
  child.kill("SIGTERM");
  expect(await ended).toEqual([0, null]);
});
