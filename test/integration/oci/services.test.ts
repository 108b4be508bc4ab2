/** The cluster's Services by rules of the host's own, as in a cloud's VM: with real nft, between namespaces. */
import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { findTool, run } from "../../../providers/local/host/command.ts";
import { giveAddress } from "../../../providers/local/network/front-door.ts";
import { HostServices } from "../../../providers/local/network/host-services.ts";
import { type Attachment, HostNetwork, type NetworkOptions } from "../../../providers/local/network/network.ts";
import type { ServicePort } from "../../../src/provider/services.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { missingForNetwork, testNetwork } from "../../support/host.ts";
import { leaveOut } from "../../support/left-out.ts";

const missing = missingForNetwork();
const LABELS = { "vmlet.dev/cluster": "c1" };
const PORT = 8080;

/** Says its name to each who connects, and back to each who sends. */
const SERVER = `const name = process.argv[1];
require("net").createServer((socket) => socket.end(name)).listen(${PORT}, "0.0.0.0");
const udp = require("dgram").createSocket("udp4");
udp.on("message", (_, { address, port }) => udp.send(name, port, address));
udp.bind(${PORT}, () => console.log("listens"));`;

/** Prints who answers, or the error. */
const CALL = `const [host, port, kind, from] = process.argv.slice(1);
const late = setTimeout(() => { console.log("silence"); process.exit(); }, 1500);
const done = (text) => { clearTimeout(late); console.log(String(text)); process.exit(); };
if (kind === "udp") {
  const socket = require("dgram").createSocket("udp4");
  socket.on("message", done);
  socket.on("error", ({ code }) => done(code));
  // Takes an answer from nobody else.
  socket.bind(Number(from), () => socket.connect(Number(port), host, () => socket.send("x")));
} else {
  const socket = require("net").connect(Number(port), host);
  socket.on("data", done);
  socket.on("error", ({ code }) => done(code));
}`;

if (missing !== undefined) leaveOut("Services by rules of the host's own", [missing]);
describe.skipIf(missing !== undefined)("a machine that calls a Service", () => {
  let options: NetworkOptions;
  let network: HostNetwork;
  let stateDir: string;
  let services: HostServices;
  let revision = 0;
  const running: ChildProcess[] = [];
  let [client, one, two]: Attachment[] = [];

  const open = () => new HostServices({ stateDir, bridge: options.bridge!, logger: silentLogger });
  const signal = AbortSignal.timeout(120_000);
  const inside = async ({ netns }: Attachment, ...command: string[]) =>
    (await run("nsenter", [`--net=${netns}`, ...command], { signal })).stdout.toString().trim();
  const call = (host: string, port = 80, kind: "tcp" | "udp" = "tcp", from = 0, who = client!) =>
    inside(who, process.execPath, "-e", CALL, host, String(port), kind, String(from));
  const port = (address: string, endpoints: Attachment[], more: Partial<ServicePort> = {}): ServicePort => ({
    ...{ address, protocol: "TCP", port: 80, ...more },
    endpoints: endpoints.map((each) => ({ address: each.address, port: PORT })),
  });
  const tell = async (...ports: ServicePort[]) =>
    await services.put({ labels: LABELS, revision: `r${++revision}`, services: ports }, { signal });
  const serve = async (machine: Attachment, name: string) => {
    const args = [`--net=${machine.netns}`, process.execPath, "-e", SERVER, name];
    const server = spawn("nsenter", args, { stdio: ["ignore", "pipe", "inherit"] });
    running.push(server);
    await once(server.stdout, "data");
  };

  beforeAll(async () => {
    options = testNetwork(await mkdtemp(join(tmpdir(), "vmlet-services-")));
    network = new HostNetwork(options);
    client = await network.attachNamespace("client");
    one = await network.attachNamespace("one");
    two = await network.attachNamespace("two");
    await serve(one, "one");
    await serve(two, "two");
  });
  beforeEach(async () => {
    stateDir = await mkdtemp(join(tmpdir(), "vmlet-services-"));
    services = open();
  });
  afterEach(async () => {
    await run("nft", ["delete", "table", "ip", `vmlet_${options.bridge}_services`]).catch(() => undefined);
  });
  afterAll(async () => {
    for (const server of running) server.kill("SIGKILL");
    await network.sweep(new Set());
    await network.remove();
  });

  test("reaches each of its endpoints, at the Service's port", async () => {
    await tell(port("10.96.0.10", [one!, two!]));
    const answers = await Promise.all(Array.from({ length: 24 }, () => call("10.96.0.10")));
    expect(new Set(answers)).toEqual(new Set(["one", "two"]));
  });

  test("is refused at once where there is no endpoint", async () => {
    await tell(port("10.96.0.10", []));
    expect(await call("10.96.0.10")).toBe("ECONNREFUSED");
    await tell(port("10.96.0.10", [one!]));
    expect(await call("10.96.0.10")).toBe("one");
    await tell(port("10.96.0.10", []));
    expect(await call("10.96.0.10")).toBe("ECONNREFUSED");
  });

  test("follows it to other endpoints, and its address leads nowhere once it is gone", async () => {
    await tell(port("10.96.0.10", [one!]), port("10.96.0.11", [two!]));
    await services.put(
      {
        labels: LABELS,
        base: `r${revision}`,
        revision: "next",
        services: [port("10.96.0.10", [two!])],
        gone: [port("10.96.0.11", [])],
      },
      { signal },
    );
    expect([await call("10.96.0.10"), await call("10.96.0.11")]).toEqual(["two", "silence"]);
  });

  test("reaches a Service of UDP, also from a port from which it has reached another endpoint before", async (context) => {
    if (findTool("conntrack") === undefined) return context.skip("conntrack is not on the PATH");
    const udp = (...endpoints: Attachment[]) => port("10.96.0.53", endpoints, { protocol: "UDP", port: 53 });
    await tell(udp());
    expect(await call("10.96.0.53", 53, "udp", 40_053)).toBe("ECONNREFUSED");
    await tell(udp(one!));
    expect(await call("10.96.0.53", 53, "udp", 40_053)).toBe("one");
    await tell(udp(two!));
    expect(await call("10.96.0.53", 53, "udp", 40_053)).toBe("two");
  });

  test("gets the same endpoint again by ClientIP, also when others come and go", async () => {
    const sticky = (...endpoints: Attachment[]) => port("10.96.0.10", endpoints, { affinity_s: 60 });
    await tell(sticky(one!));
    expect(await call("10.96.0.10")).toBe("one");
    await tell(sticky(one!, two!));
    const answers = await Promise.all(Array.from({ length: 12 }, () => call("10.96.0.10")));
    expect(new Set(answers)).toEqual(new Set(["one"]));
    await tell(sticky(two!));
    expect(await call("10.96.0.10")).toBe("two");
    await tell(port("10.96.0.10", [one!]));
    expect(await call("10.96.0.10")).toBe("one");
  });

  test("may be the endpoint itself, also at the address that it has of its host", async () => {
    await tell(port("10.96.0.10", [one!]), {
      ...port("10.96.0.11", []),
      endpoints: [{ address: "192.0.2.7", port: PORT }],
    });
    expect(await call("10.96.0.10", 80, "tcp", 0, one)).toBe("one");
    await services.lead("192.0.2.7", one!.address);
    expect(await call("10.96.0.11", 80, "tcp", 0, one)).toBe("one");
  });

  test("is answered by UDP at the address that its endpoint has of its host, too", async () => {
    const named = await network.attachNamespace("named");
    await giveAddress({ address: named.address, netns: named.netns! }, "192.0.2.8");
    // Again, as each look at the machine does.
    await giveAddress({ address: named.address, netns: named.netns! }, "192.0.2.8");
    await serve(named, "named");
    expect([await call(named.address, PORT), await call(named.address, PORT, "udp")]).toEqual(["named", "named"]);
    const route = await inside(named, "ip", "route", "get", client!.address);
    expect(route).toContain("src 192.0.2.8");
  });

  test("reaches it after a restart of the backend, and after somebody has flushed the rules", async () => {
    await tell(port("10.96.0.10", [one!]));
    await run("nft", ["delete", "table", "ip", `vmlet_${options.bridge}_services`]);
    services = open();
    await services.restore();
    expect(await call("10.96.0.10")).toBe("one");
    await run("nft", ["delete", "table", "ip", `vmlet_${options.bridge}_services`]);
    const again = { labels: LABELS, base: `r${revision}`, revision: `r${revision}`, services: [] };
    await services.put(again, { signal });
    expect(await call("10.96.0.10")).toBe("one");
  });

  test("reaches a change that comes after the rules were flushed, and what was there before", async () => {
    await tell(port("10.96.0.10", [one!]));
    await run("nft", ["delete", "table", "ip", `vmlet_${options.bridge}_services`]);
    const change = { labels: LABELS, base: `r${revision}`, revision: "next", services: [port("10.96.0.11", [two!])] };
    await services.put(change, { signal });
    expect([await call("10.96.0.10"), await call("10.96.0.11")]).toEqual(["one", "two"]);
  });

  test("does not reach this host by a Service whose endpoint is the host", async () => {
    const { gateway } = client!;
    await tell({ ...port("10.96.0.10", []), endpoints: [{ address: gateway, port: 22 }] });
    expect(await call("10.96.0.10")).toBe("silence");
  });

  test("reaches what one node's agent tells: another's is refused", async () => {
    await tell(port("10.96.0.10", [one!]));
    const other = { labels: { "vmlet.dev/cluster": "c2" }, revision: "x", services: [port("10.96.0.10", [two!])] };
    await expect(services.put(other, { signal })).rejects.toThrow("that is another one");
    expect(await call("10.96.0.10")).toBe("one");
  });
});
