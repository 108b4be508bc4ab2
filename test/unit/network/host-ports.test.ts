/** Which ports of this host a machine may have. */
import { createSocket } from "node:dgram";
import { once } from "node:events";
import { createServer, type AddressInfo } from "node:net";
import { networkInterfaces } from "node:os";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import {
  DEFAULT_HOST_PORTS,
  parsePortRange,
  PortHolders,
  requireHostPorts,
} from "../../../providers/local/network/host-ports.ts";
import type { ContainerPort } from "../../../src/provider/machine.ts";
import { containerSpec, machineSpec } from "../../support/builders.ts";

const machine = (...ports: ContainerPort[]) => machineSpec({ containers: [containerSpec({ ports })] });
const port = (host_port: number, more: Partial<ContainerPort> = {}): ContainerPort => ({
  port: 80,
  protocol: "tcp",
  host_port,
  ...more,
});
const policy = { allowed: DEFAULT_HOST_PORTS, reserved: [8080], hasIpv6: false };
const dual = { ...policy, hasIpv6: true };

describe("host ports that a machine asks for", () => {
  test.each([[1024], [65_535], [30_000]])("%s may be had", (number) =>
    expect(() => requireHostPorts(machine(port(number)), policy)).not.toThrow(),
  );
  test.each<[string, ContainerPort[], string, string]>([
    ["one of the host's own services", [port(22)], "unsupported", "containers.ports.host_port"],
    ["the last of these", [port(1023)], "unsupported", "containers.ports.host_port"],
    ["none at all", [port(0)], "unsupported", "containers.ports.host_port"],
    ["the backend's own", [port(8080)], "unsupported", "containers.ports.host_port"],
    ["the backend's own, as UDP", [port(8080, { protocol: "udp" })], "unsupported", "containers.ports.host_port"],
    ["the same twice", [port(2000), port(2000, { port: 81 })], "invalid", "containers.ports.host_port"],
    ["of another's address", [port(2000, { host_ip: "192.0.2.77" })], "unsupported", "containers.ports.host_ip"],
    ["of an IPv6 address", [port(2000, { host_ip: "::" })], "unsupported", "containers.ports.host_ip"],
    ["of what is no address", [port(2000, { host_ip: "localhost" })], "unsupported", "containers.ports.host_ip"],
    [
      "the same of one address and of all",
      [port(2000, { host_ip: "127.0.0.1" }), port(2000, { port: 81 })],
      "invalid",
      "containers.ports.host_port",
    ],
    [
      "more than a machine may",
      Array.from({ length: 129 }, (_, index) => port(2000 + index)),
      "unsupported",
      "containers.ports.host_port",
    ],
  ])("are refused with their field: %s", (_title, ports, code, field) =>
    expect(() => requireHostPorts(machine(...ports), policy)).toThrow(expect.objectContaining({ code, field })),
  );
  test("low ones may be had where the host's owner says so, and then no others", () => {
    const own = { ...policy, allowed: ["80", "30000-30010"], reserved: [] };
    expect(() => requireHostPorts(machine(port(80), port(30_010)), own)).not.toThrow();
    expect(() => requireHostPorts(machine(port(30_011)), own)).toThrow("engine.network.hostPorts: 80, 30000-30010");
  });
  test("the same number may be had of several addresses of this host", () => {
    const own = Object.values(networkInterfaces())
      .flatMap((all) => all ?? [])
      .filter(({ family }) => family === "IPv4")
      .map(({ address }) => port(2000, { host_ip: address }));
    expect(() => requireHostPorts(machine(...own, port(2000, { host_ip: "127.0.0.7" })), policy)).not.toThrow();
  });
  describe("where machines have IPv6 addresses", () => {
    test("one of all of this host's may be had, beside one of an IPv4 address", () =>
      expect(() =>
        requireHostPorts(machine(port(2000, { host_ip: "::" }), port(2000, { host_ip: "127.0.0.1" })), dual),
      ).not.toThrow());

    test.each([
      ["loopback's", [port(2000, { host_ip: "::1" })], "is IPv6's loopback"],
      ["another's", [port(2000, { host_ip: "2001:DB8::0:7" })], 'host_ip "2001:db8::7" is not an address of this host'],
      ["all of them and all addresses", [port(2000, { host_ip: "::" }), port(2000, { port: 81 })], "asked for twice"],
    ])("is refused of %s", (_title, ports, words) =>
      expect(() => requireHostPorts(machine(...ports), dual)).toThrow(words),
    );
  });

  test("the same number may be had for TCP and for UDP", () =>
    expect(() => requireHostPorts(machine(port(2000), port(2000, { protocol: "udp" })), policy)).not.toThrow());
  test.each(["0", "65536", "20-10", "-", "1-", "http", "", "1-2-3"])("%j is no range", (text) =>
    expect(() => parsePortRange(text)).toThrow("must be a port or a range"),
  );
});

describe("a port that is held", () => {
  let holders: PortHolders;
  beforeEach(() => {
    holders = new PortHolders();
  });
  afterEach(() => holders.close());
  const listen = async (host: string, number = 0) => {
    const server = createServer().listen({ port: number, host, exclusive: true });
    await once(server, "listening");
    return { port: (server.address() as AddressInfo).port, [Symbol.asyncDispose]: () => closed(server) };
  };
  const closed = (server: ReturnType<typeof createServer>) =>
    new Promise<void>((resolve) => server.close(() => resolve()));
  const bind = async (host: string, number = 0) => {
    const socket = createSocket(host.includes(":") ? "udp6" : "udp4");
    socket.bind({ port: number, address: host, exclusive: true });
    await once(socket, "listening");
    return { port: socket.address().port, [Symbol.dispose]: () => void socket.close() };
  };
  const conflict = (text: string) =>
    expect.objectContaining({ code: "conflict", message: expect.stringContaining(text) });

  test.each(["0.0.0.0", "127.0.0.1", "::1", "::"])("is not one that a service of this host has on %s", async (host) => {
    await using service = await listen(host);
    await expect(holders.take("m", [{ protocol: "tcp", host_port: service.port }])).rejects.toEqual(
      conflict(`host port ${service.port}/tcp is in use by this host`),
    );
  });
  test.each(["0.0.0.0", "127.0.0.1", "::1"])("is not one that a UDP service of this host has on %s", async (host) => {
    using service = await bind(host);
    await expect(holders.take("m", [{ protocol: "udp", host_port: service.port }])).rejects.toEqual(
      conflict(`host port ${service.port}/udp is in use by this host`),
    );
  });
  test.each(["tcp", "udp"] as const)("cannot be taken by a service that comes later: %s", async (protocol) => {
    const { port: free } = await (async () => {
      await using service = await listen("0.0.0.0");
      return { port: service.port };
    })();
    await holders.take("m", [{ protocol, host_port: free }]);
    const later = protocol === "tcp" ? listen("0.0.0.0", free) : bind("0.0.0.0", free);
    await expect(later).rejects.toMatchObject({ code: "EADDRINUSE" });
    holders.release("m");
    await expect.poll(() => holders.take("other", [{ protocol, host_port: free }])).toBeUndefined();
  });
  test.each(["tcp", "udp"] as const)("of one address leaves those of others to others: %s", async (protocol) => {
    const { port: free } = await (async () => {
      await using service = await listen("0.0.0.0");
      return { port: service.port };
    })();
    const at = (host_ip?: string) => [{ protocol, host_port: free, host_ip }];
    await holders.take("a", at("127.0.0.1"));
    await holders.take("b", at("127.0.0.2"));
    for (const taken of [at("127.0.0.2"), at(), at("0.0.0.0")])
      await expect(holders.take("c", taken)).rejects.toEqual(conflict("in use by another machine"));
    holders.release("a");
    await holders.take("c", at("127.0.0.1"));
  });
  test("of one address is not one that a service of this host has on all", async () => {
    await using service = await listen("0.0.0.0");
    const asked = [{ protocol: "tcp" as const, host_port: service.port, host_ip: "127.0.0.1" }];
    await expect(holders.take("m", asked)).rejects.toEqual(conflict("in use by this host"));
  });
  test("is one machine's: of two that ask at once, one has it", async () => {
    await using service = await listen("0.0.0.0");
    const { port: number } = service;
    await service[Symbol.asyncDispose]();
    const asked = ["a", "b"].map((owner) => holders.take(owner, [{ protocol: "tcp", host_port: number }]));
    const outcomes = (await Promise.allSettled(asked)).map(({ status }) => status);
    expect(outcomes.toSorted()).toEqual(["fulfilled", "rejected"]);
  });
  test("is given back when the machine cannot have all that it asks for", async () => {
    await using service = await listen("0.0.0.0");
    await using other = await listen("0.0.0.0");
    await other[Symbol.asyncDispose]();
    const asked = [other.port, service.port].map((host_port) => ({ protocol: "tcp" as const, host_port }));
    await expect(holders.take("m", asked)).rejects.toEqual(conflict(`${service.port}/tcp`));
    await (await listen("0.0.0.0", other.port))[Symbol.asyncDispose]();
  });
});
