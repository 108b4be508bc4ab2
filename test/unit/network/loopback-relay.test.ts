import { chmodSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { once } from "node:events";
import { createServer, type AddressInfo, type Server } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { LoopbackRelay } from "../../../providers/local/network/loopback-relay.ts";
import { VirtualClock } from "../../support/virtual-clock.ts";

const IDLE_MS = 60_000;

let dir: string;
let server: Server;
let port: number;
let clock: VirtualClock;
let relay: LoopbackRelay;

beforeEach(async () => {
  dir = mkdtempSync(join(tmpdir(), "vmlet-relay-"));
  // In this test's own network: entering another one needs root.
  writeFileSync(join(dir, "nsenter"), `#!/bin/sh\necho started >>${dir}/helpers\nshift\nexec "$@"\n`);
  chmodSync(join(dir, "nsenter"), 0o755);
  vi.stubEnv("PATH", `${dir}:${process.env["PATH"]}`);
  server = createServer((socket) => socket.end("hello")).listen(0, "127.0.0.1");
  await once(server, "listening");
  ({ port } = server.address() as AddressInfo);
  clock = new VirtualClock();
  relay = new LoopbackRelay({ netns: "/proc/self/ns/net", socketPath: join(dir, "relay"), clock });
});

afterEach(() => {
  relay.close();
  server.close();
  vi.unstubAllEnvs();
  rmSync(dir, { recursive: true, force: true });
});

const signal = new AbortController().signal;
const helpers = () => readFileSync(join(dir, "helpers"), "utf8").trim().split("\n").length;

async function fetchThrough(): Promise<string> {
  const socket = await relay.dial(port, signal);
  const text = (await socket.toArray()).join("");
  socket.destroy();
  if (!socket.closed) await once(socket, "close");
  return text;
}

test("connections share one helper, and after a while of none it goes", async () => {
  expect(await fetchThrough()).toBe("hello");
  expect(await fetchThrough()).toBe("hello");
  expect(helpers()).toBe(1);
  await clock.advance(IDLE_MS);
  expect(await fetchThrough()).toBe("hello");
  expect(helpers()).toBe(2);
});

test("the end of a helper is not taken for that of the one after it", async () => {
  await fetchThrough();
  await clock.advance(IDLE_MS);
  await fetchThrough();
  await fetchThrough();
  expect(helpers()).toBe(2);
});

test("a helper that could not be started is started anew", async () => {
  writeFileSync(join(dir, "nsenter"), "#!/no/such/shell\n");
  await expect(relay.dial(port, signal)).rejects.toThrow("ENOENT");
  writeFileSync(join(dir, "nsenter"), `#!/bin/sh\nshift\nexec "$@"\n`);
  expect(await fetchThrough()).toBe("hello");
});
