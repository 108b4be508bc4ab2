import { spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync, readFileSync } from "node:fs";
import { mkdtemp, readdir, writeFile } from "node:fs/promises";
import { createSocket } from "node:dgram";
import { connect, createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { text } from "node:stream/consumers";
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { run } from "../../../providers/local/host/command.ts";
import { HostNetwork, type Attachment, type NetworkOptions } from "../../../providers/local/network/network.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { missingForNetwork, testNetwork } from "../../support/host.ts";
import { VirtualClock } from "../../support/virtual-clock.ts";

const missing = missingForNetwork();
if (missing !== undefined) console.warn(`machine network: left out, ${missing}`);

describe.skipIf(missing !== undefined)("machine network", () => {
  let options: NetworkOptions;
  let network: HostNetwork;
  let links: string[];
  const inside = (attachment: Attachment, ...command: string[]) =>
    run("nsenter", [`--net=${attachment.netns}`, ...command], { signal: AbortSignal.timeout(10_000) });
  const script = (host: string, port: number, refusedIsGood: boolean) =>
    `const s=require("net").connect(${port},"${host}");s.setTimeout(500,()=>process.exit(1));s.on("connect",()=>process.exit(0));` +
    `s.on("error",(e)=>process.exit(${refusedIsGood}&&e.code==="ECONNREFUSED"?0:1))`;
  const succeeds = (attempt: Promise<unknown>) =>
    attempt.then(
      () => true,
      () => false,
    );
  /** True when a TCP connection from the machine to the address gets through. */
  const reaches = (from: Attachment, host: string, port: number) =>
    succeeds(inside(from, process.execPath, "-e", script(host, port, false)));
  /** True when packets go there and back: a refused connection is an answer. */
  const answers = (from: Attachment | undefined, to: { address: string }) => {
    const args = ["-e", script(to.address, 9, true)];
    return succeeds(from === undefined ? run(process.execPath, args) : inside(from, process.execPath, ...args));
  };
  const listener = async (host: string) => {
    const server = createServer((socket) => socket.on("error", () => undefined).end("hello"));
    await new Promise<void>((resolve) => server.listen(0, host, resolve));
    return {
      port: (server.address() as { port: number }).port,
      close: () => new Promise((resolve) => server.close(resolve)),
    };
  };

  beforeAll(async () => {
    links = await readdir("/sys/class/net");
    options = testNetwork(await mkdtemp(join(tmpdir(), "vmlet-network-")));
    network = new HostNetwork(options);
  });
  afterEach(async () => {
    await network.sweep(new Set());
    network.close();
  });
  afterAll(async () => {
    await network.remove();
    expect((await readdir("/sys/class/net")).toSorted()).toEqual(links.toSorted());
  });

  test("a machine has its address on eth0 and loopback", async () => {
    const machine = await network.attachNamespace("a");
    const { stdout } = await inside(machine, "ip", "-o", "-4", "address");
    expect(stdout.toString()).toContain(`inet ${machine.address}/24`);
    expect(stdout.toString()).toContain("inet 127.0.0.1/8");
  });

  test("this host and other machines reach a machine by its address", async () => {
    const [a, b] = [await network.attachNamespace("a"), await network.attachNamespace("b")];
    expect(await answers(undefined, a)).toBe(true);
    expect(await answers(b, a)).toBe(true);
  });

  test("a machine does not reach what listens on this host", async () => {
    const machine = await network.attachNamespace("a");
    const server = await listener("0.0.0.0");
    expect(await reaches(machine, machine.gateway, server.port)).toBe(false);
    await server.close();
  });

  test("a port of this host that is opened to machines is reached", async () => {
    const server = await listener("0.0.0.0");
    const open = new HostNetwork({ ...options, openHostPorts: [server.port] });
    const machine = await open.attachNamespace("a");
    expect(await reaches(machine, machine.gateway, server.port)).toBe(true);
    await server.close();
    network = new HostNetwork(options);
    await network.ensure();
  });

  test("a machine cannot send from another's address", async () => {
    const [a, b] = [await network.attachNamespace("a"), await network.attachNamespace("b")];
    expect(await answers(b, a)).toBe(true);
    await inside(b, "ip", "address", "flush", "dev", "eth0");
    await inside(b, "ip", "address", "add", a.address.replace(/\d+$/, "200/24"), "dev", "eth0");
    expect(await answers(b, a)).toBe(false);
  });

  test("a machine cannot send from another's MAC", async () => {
    const [a, b] = [await network.attachNamespace("a"), await network.attachNamespace("b")];
    const other = await network.attachNamespace("c");
    expect(await answers(b, other)).toBe(true);
    await inside(b, "ip", "link", "set", "eth0", "address", a.mac);
    expect(await answers(b, other)).toBe(false);
  });

  test.each([
    ["allow", true],
    ["deny", false],
  ] as const)("outbound %s: a machine reaches the outside: %s", async (outbound, expected) => {
    // The outside is a second bridge of this host, with a machine on it.
    const outside = new HostNetwork(testNetwork(await mkdtemp(join(tmpdir(), "vmlet-network-"))));
    const target = await outside.attachNamespace("target");
    const policy = new HostNetwork({ ...options, outbound });
    const machine = await policy.attachNamespace("a");
    expect(await answers(machine, target)).toBe(expected);
    await outside.remove();
    network = new HostNetwork(options);
    await network.ensure();
  });

  test.each([
    ["of other hosts, its own, though it reaches nothing else", "deny", true],
    ["outside, this host's", "allow", false],
  ] as const)("pods see of a machine, as an address: %s", async (_where, outbound, isPods) => {
    const outsideOptions = testNetwork(await mkdtemp(join(tmpdir(), "vmlet-network-")));
    const outside = new HostNetwork(outsideOptions);
    const target = await outside.attachNamespace("target");
    const abort = new AbortController();
    const server = `require("net").createServer(s=>s.on("error",()=>{}).end(s.remoteAddress)).listen(8080,"0.0.0.0")`;
    const serving = run("nsenter", [`--net=${target.netns}`, process.execPath, "-e", server], {
      signal: abort.signal,
    }).catch(() => undefined);
    await expect.poll(() => reaches(target, "127.0.0.1", 8080), { timeout: 10_000 }).toBe(true);
    const policy = new HostNetwork({ ...options, outbound, podCidrs: isPods ? [outsideOptions.cidr!] : [] });
    const machine = await policy.attachNamespace("a");
    const client = `require("net").connect(8080,"${target.address}").pipe(process.stdout)`;
    const { stdout } = await inside(machine, process.execPath, "-e", client);
    expect(stdout.toString()).toBe(isPods ? machine.address : target.gateway);
    abort.abort();
    await serving;
    await outside.remove();
    network = new HostNetwork(options);
    await network.ensure();
  });

  test("denied ranges are not reached even when the outside is", async () => {
    const outsideOptions = testNetwork(await mkdtemp(join(tmpdir(), "vmlet-network-")));
    const outside = new HostNetwork(outsideOptions);
    const target = await outside.attachNamespace("target");
    const policy = new HostNetwork({ ...options, outbound: "allow", denyCidrs: [outsideOptions.cidr!] });
    const machine = await policy.attachNamespace("a");
    expect(await answers(machine, target)).toBe(false);
    await outside.remove();
    network = new HostNetwork(options);
    await network.ensure();
  });

  test("a host port leads to the machine, and is free again when the machine is gone", async () => {
    const machine = await network.attachNamespace("a");
    const outside = new HostNetwork(testNetwork(await mkdtemp(join(tmpdir(), "vmlet-network-"))));
    const client = await outside.attachNamespace("client");
    const server = `require("net").createServer(s=>s.end()).listen(8080,"0.0.0.0",()=>console.log("up"))`;
    const abort = new AbortController();
    const serving = run("nsenter", [`--net=${machine.netns}`, process.execPath, "-e", server], {
      signal: abort.signal,
    }).catch(() => undefined);
    await network.openHostPorts("a", [{ port: 8080, protocol: "tcp", host_port: 23_123 }]);
    await expect.poll(() => reaches(machine, "127.0.0.1", 8080), { timeout: 5000 }).toBe(true);
    expect(await reaches(client, client.gateway, 23_123)).toBe(true);
    // And the machine itself, by way of the host: its packets go back where they came from.
    expect(await reaches(machine, machine.gateway, 23_123)).toBe(true);
    await network.attachNamespace("b");
    await expect(network.openHostPorts("b", [{ port: 80, protocol: "tcp", host_port: 23_123 }])).rejects.toMatchObject({
      code: "conflict",
    });
    await network.detach("a");
    await network.openHostPorts("b", [{ port: 80, protocol: "tcp", host_port: 23_123 }]);
    abort.abort();
    await serving;
    await outside.remove();
  });

  test("a machine is told whose call it is, where this host's rules see what is bridged, and answers everywhere", async () => {
    const abort = new AbortController();
    const machine = await network.attachNamespace("a");
    const client = await network.attachNamespace("b");
    const script = `require("net").createServer(s=>s.on("error",()=>{}).end(s.remoteAddress)).listen(8080,"0.0.0.0")`;
    const serving = run("nsenter", [`--net=${machine.netns}`, process.execPath, "-e", script], {
      signal: abort.signal,
    });
    const ended = serving.catch(() => undefined);
    await network.openHostPorts("a", [{ port: 8080, protocol: "tcp", host_port: 23_124 }]);
    await expect.poll(() => reaches(machine, "127.0.0.1", 8080), { timeout: 5000 }).toBe(true);
    const seenFrom = async ({ netns, gateway }: Attachment) => {
      const call = `require("net").connect(23124,"${gateway}").on("data",d=>process.stdout.write(d)).setTimeout(3000,()=>process.exit(1))`;
      return (await run("nsenter", [`--net=${netns}`, process.execPath, "-e", call])).stdout.toString();
    };
    const seesBridged = async (value: 0 | 1) => {
      await run("ip", ["link", "set", options.bridge!, "type", "bridge", "nf_call_iptables", String(value)]);
      await network.heal();
    };
    await seesBridged(1);
    expect(await seenFrom(client)).toBe(client.address);
    expect(await seenFrom(machine)).toBe(machine.gateway);
    await seesBridged(0);
    const isSeenAnyway = readFileSync("/proc/sys/net/bridge/bridge-nf-call-iptables", "utf8").trim() === "1";
    expect(await seenFrom(client)).toBe(isSeenAnyway ? client.address : client.gateway);
    abort.abort();
    await ended;
  });

  test("ports of one address lead to the machine that has that one, from this host and from loopback", async () => {
    const abort = new AbortController();
    const serve = async (id: string) => {
      const machine = await network.attachNamespace(id);
      const script = `require("net").createServer(s=>s.on("error",()=>{}).end("${id}")).listen(8080,"0.0.0.0")`;
      const serving = run("nsenter", [`--net=${machine.netns}`, process.execPath, "-e", script], {
        signal: abort.signal,
      }).catch(() => undefined);
      await expect.poll(() => reaches(machine, "127.0.0.1", 8080), { timeout: 5000 }).toBe(true);
      return { serving, gateway: machine.gateway };
    };
    const machines = [await serve("a"), await serve("b"), await serve("c")];
    const [{ gateway }] = machines as [(typeof machines)[0]];
    const port = { port: 8080, protocol: "tcp" as const, host_port: 23_127 };
    const own = "127.0.0.5";
    await network.openHostPorts("a", [{ ...port, host_ip: own }]);
    await network.openHostPorts("b", [{ ...port, host_ip: gateway }]);
    await expect(network.openHostPorts("c", [port])).rejects.toMatchObject({ code: "conflict" });
    const answer = async (host: string) => await text(connect(23_127, host));
    expect([await answer(own), await answer(gateway)]).toEqual(["a", "b"]);
    await expect(answer("127.0.0.1")).rejects.toMatchObject({ code: "ECONNREFUSED" });
    await network.detach("a");
    await network.openHostPorts("c", [{ ...port, host_ip: own }]);
    expect(await answer(own)).toBe("c");
    const routed = `/proc/sys/net/ipv4/conf/${options.bridge}/route_localnet`;
    await writeFile(routed, "0");
    expect(await network.heal()).toBe(`host port ${own} . tcp . 23127`);
    expect(await answer(own)).toBe("c");
    abort.abort();
    await Promise.all(machines.map(({ serving }) => serving));
  });

  test("a machine does not reach this host's loopback, although machines have ports of it", async () => {
    const server = await listener("127.0.0.1");
    const open = new HostNetwork({ ...options, openHostPorts: [server.port] });
    const machine = await open.attachNamespace("a");
    await open.openHostPorts("a", [{ port: 80, protocol: "tcp", host_port: 23_128, host_ip: "127.0.0.1" }]);
    // What a hostile machine would do: the host's loopback by way of the bridge.
    await inside(machine, "sysctl", "-qw", "net.ipv4.conf.all.route_localnet=1");
    for (const change of [
      ["address", "delete", "127.0.0.1/8", "dev", "lo"],
      ["route", "add", "127.0.0.0/8", "via", machine.gateway, "dev", "eth0", "src", machine.address],
    ])
      await inside(machine, "ip", ...change);
    expect(await reaches(machine, "127.0.0.1", server.port)).toBe(false);
    await server.close();
    open.close();
    network = new HostNetwork(options);
    await network.ensure();
  });

  test("a port that a service of this host has is not a machine's, and the service goes on", async () => {
    const server = await listener("0.0.0.0");
    const outside = new HostNetwork({
      ...testNetwork(await mkdtemp(join(tmpdir(), "vmlet-network-"))),
      openHostPorts: [server.port],
    });
    const client = await outside.attachNamespace("client");
    await network.attachNamespace("a");
    await expect(
      network.openHostPorts("a", [{ port: 80, protocol: "tcp", host_port: server.port }]),
    ).rejects.toMatchObject({ code: "conflict", message: expect.stringContaining("in use by this host") });
    expect(await reaches(client, client.gateway, server.port)).toBe(true);
    await server.close();
    await outside.remove();
  });

  test("a service that took a machine's port while no backend held it keeps it", async () => {
    await network.attachNamespace("a");
    const server = await listener("0.0.0.0");
    const ports = [{ port: 80, protocol: "tcp" as const, host_port: server.port }];
    await server.close();
    await network.openHostPorts("a", ports);
    network.close();
    const late = createServer().listen(server.port, "0.0.0.0");
    await once(late, "listening");
    network = new HostNetwork(options);
    await expect(network.openHostPorts("a", ports)).rejects.toMatchObject({ code: "conflict" });
    const { stdout } = await run("nft", ["list", "map", "inet", `vmlet_${options.bridge}`, "host_ports"]);
    expect(stdout.toString()).not.toContain(String(server.port));
    late.close();
  });

  test("a port of a machine that is yet to be found again is not another machine's", async () => {
    await network.attachNamespace("a");
    await network.attachNamespace("b");
    await network.openHostPorts("a", [{ port: 80, protocol: "tcp", host_port: 23_124 }]);
    network.close();
    network = new HostNetwork(options);
    const ask = (machine: string) => network.openHostPorts(machine, [{ port: 80, protocol: "tcp", host_port: 23_124 }]);
    await expect(ask("b")).rejects.toMatchObject({ code: "conflict" });
    await ask("a");
  });

  describe("when somebody has flushed this host's rules", () => {
    let machine: Attachment;
    const flush = async () => {
      for (const family of ["inet", "netdev"]) await run("nft", ["delete", "table", family, `vmlet_${options.bridge}`]);
    };
    beforeEach(async () => {
      machine = await network.attachNamespace("a");
      await flush();
    });

    test("the next backend makes them anew, and machines are not cut off", async () => {
      network = new HostNetwork(options);
      await network.ensure();
      const other = await network.attachNamespace("b");
      expect(await answers(other, machine)).toBe(true);
    });

    test("they are made anew without a machine that comes or goes, host ports too", async () => {
      await network.heal();
      await network.openHostPorts("a", [{ port: 80, protocol: "tcp", host_port: 23_126 }]);
      expect(await network.heal()).toBeUndefined();
      const server = await listener("0.0.0.0");
      await flush();
      expect(await reaches(machine, machine.gateway, server.port)).toBe(true);
      expect(await network.heal()).toContain("nft chain");
      expect(await reaches(machine, machine.gateway, server.port)).toBe(false);
      const { stdout } = await run("nft", ["list", "map", "inet", `vmlet_${options.bridge}`, "host_ports"]);
      expect(stdout.toString()).toContain("23126");
      expect(await network.heal()).toBeUndefined();
      await server.close();
    });

    test("a backend looks for itself, until it is closed", async () => {
      const clock = new VirtualClock();
      await network.claim();
      network.lookAfter(clock, silentLogger);
      const tables = async () => (await run("nft", ["list", "tables"])).stdout.toString();
      await clock.advance(15_000);
      await expect.poll(tables, { timeout: 10_000 }).toContain(`inet vmlet_${options.bridge}`);
    });

    test("a second attempt to attach a machine makes them anew", async () => {
      await expect(network.attachNamespace("b")).rejects.toThrow("No such file or directory");
      const other = await network.attachNamespace("b");
      expect(await answers(other, machine)).toBe(true);
    });

    test("a second attempt to detach a machine makes them anew", async () => {
      await expect(network.detach("a")).rejects.toThrow("No such file or directory");
      await network.detach("a");
      expect(await network.find("a")).toBeUndefined();
    });
  });

  describe("limits of traffic", () => {
    const bandwidth = { ingress_bits_per_second: 8_000, egress_bits_per_second: 8_000 };
    const DATAGRAMS = 400;
    /** Of 1,000 bytes: after the first 128 KiB, one a second goes through. */
    const PASSING = 160;
    const flood = (host: string, port: number) =>
      `const s=require("dgram").createSocket("udp4"),b=Buffer.alloc(1000);let n=0;` +
      `const next=()=>n++<${DATAGRAMS}?s.send(b,${port},"${host}",next):s.close();next()`;
    const count = `const s=require("dgram").createSocket("udp4");let n=0;s.on("message",(m)=>m.length>1?n++:(console.log(n),s.close()));s.bind(23131,()=>console.log("bound"))`;

    test("what a machine sends beyond its own is dropped", async () => {
      const machine = await network.attachNamespace("a");
      await network.limits.hold("a", bandwidth);
      const open = new HostNetwork({ ...options, openHostPorts: [23_131] });
      await open.ensure();
      const server = createSocket("udp4");
      let got = 0;
      server.on("message", () => got++);
      await new Promise<void>((resolve) => server.bind(23_131, machine.gateway, resolve));
      await inside(machine, process.execPath, "-e", flood(machine.gateway, 23_131));
      await expect.poll(() => got).toBeGreaterThan(100);
      server.close();
      await new Promise((resolve) => server.once("close", resolve));
      expect(got).toBeLessThan(PASSING);
    });

    test("what comes to a machine beyond its own does not arrive", async () => {
      const [machine, other] = [await network.attachNamespace("a"), await network.attachNamespace("b")];
      await network.limits.hold("a", bandwidth);
      const counting = spawn("nsenter", [`--net=${machine.netns}`, process.execPath, "-e", count]);
      await once(counting.stdout, "data");
      // A program of this host would wait in its place.
      await inside(other, process.execPath, "-e", flood(machine.address, 23_131));
      // Without its limit the last word arrives.
      await run("tc", ["qdisc", "delete", "dev", machine.link, "root"]);
      const client = createSocket("udp4");
      client.send("x", 23_131, machine.address);
      const got = Number(await text(counting.stdout));
      client.close();
      expect(got).toBeGreaterThan(100);
      expect(got).toBeLessThan(PASSING);
    });

    test("they hold when rules are made again, and go with the machine", async () => {
      await network.attachNamespace("a");
      await network.limits.hold("a", bandwidth);
      const table = `vmlet_${options.bridge!}`;
      const chains = async () => (await run("nft", ["list", "table", "netdev", table])).stdout.toString();
      await run("nft", ["delete", "table", "netdev", table]);
      expect(await network.heal()).toContain("rules");
      expect(await chains()).toContain("limit rate over 1000 bytes/second burst 128 kbytes");
      await network.detach("a");
      expect(await chains()).not.toContain("limit rate");
    });

    test("a machine that has limits still cannot send from another's address", async () => {
      const [a, b] = [await network.attachNamespace("a"), await network.attachNamespace("b")];
      await network.limits.hold("b", { egress_bits_per_second: 1_000_000_000 });
      expect(await answers(b, a)).toBe(true);
      await inside(b, "ip", "address", "flush", "dev", "eth0");
      await inside(b, "ip", "address", "add", a.address.replace(/\d+$/, "200/24"), "dev", "eth0");
      expect(await answers(b, a)).toBe(false);
    });
  });

  test("what the kernel remembers of a machine's connections goes with the machine", async () => {
    const machine = await network.attachNamespace("a");
    const about = async () => {
      const { stdout } = await run("conntrack", ["-L", "-f", "ipv4"]);
      return stdout.toString().includes(`=${machine.address} `);
    };
    await network.openHostPorts("a", [{ port: 53, protocol: "udp", host_port: 23_127 }]);
    const client = createSocket("udp4");
    await new Promise((resolve) => client.send("x", 23_127, machine.gateway, resolve));
    client.close();
    await expect.poll(about).toBe(true);
    await network.detach("a");
    expect(await about()).toBe(false);
  });

  test("a bridge that somebody deleted is made again, with the machines that were on it", async () => {
    const a = await network.attachNamespace("a");
    await run("ip", ["link", "delete", options.bridge!]);
    const b = await network.attachNamespace("b");
    expect(await answers(b, a)).toBe(true);
    await run("ip", ["link", "delete", options.bridge!]);
    expect(await network.heal()).toContain("bridge");
    expect(await answers(b, a)).toBe(true);
  });

  test("an address of the bridge that somebody removed is put back", async () => {
    const a = await network.attachNamespace("a");
    await run("ip", ["address", "flush", "dev", options.bridge!]);
    expect(await network.heal()).toContain("address");
    expect(await answers(undefined, a)).toBe(true);
  });

  test("a second backend process finds the attachment", async () => {
    const machine = await network.attachNamespace("a");
    expect(await new HostNetwork(options).find("a")).toEqual(machine);
    expect(await network.find("never")).toBeUndefined();
  });

  test("a bridge belongs to one backend at a time", async () => {
    await network.claim();
    await network.claim();
    const second = new HostNetwork(options);
    await expect(second.claim()).rejects.toThrow(`network.bridge ${options.bridge} is in use by another backend`);
    network.close();
    await second.claim();
    second.close();
  });

  test("a backend that ends leaves bridge and rules to its machines, and takes them away when it has none", async () => {
    const own = testNetwork(await mkdtemp(join(tmpdir(), "vmlet-network-")));
    const isThere = async () => {
      const { stdout } = await run("nft", ["list", "tables"]);
      const hasTable = stdout.includes(own.bridge!.replace("-", "_"));
      expect((await readdir("/sys/class/net")).includes(own.bridge!)).toBe(hasTable);
      return hasTable;
    };
    const first = new HostNetwork(own);
    await first.claim();
    await first.attachNamespace("a");
    await first.leave();
    expect(await isThere()).toBe(true);
    const second = new HostNetwork(own);
    await second.claim();
    await second.detach("a");
    await second.leave();
    expect(await isThere()).toBe(false);
    await new HostNetwork(own).remove();
  });

  test("a bridge that the host's owner has made stays when a backend ends", async () => {
    const own = testNetwork(await mkdtemp(join(tmpdir(), "vmlet-network-")));
    await run("ip", ["link", "add", own.bridge!, "type", "bridge"]);
    const backend = new HostNetwork(own);
    await backend.claim();
    await backend.ensure();
    await backend.leave();
    expect(await readdir("/sys/class/net")).toContain(own.bridge);
    await new HostNetwork(own).remove();
  });

  test("a bridge is free again when the backend that had it was killed", async () => {
    const holder = spawn("flock", [`/run/vmlet-${options.bridge}.lock`, "sh", "-c", "echo up; exec sleep 1000"], {
      detached: true,
      stdio: ["ignore", "pipe", "ignore"],
    });
    await once(holder.stdout, "data");
    await expect(network.claim()).rejects.toThrow("is in use by another backend");
    process.kill(-holder.pid!, "SIGKILL");
    await once(holder, "close");
    await network.claim();
  });

  test("a range in which this host has an address elsewhere is refused, unless machines have addresses of it", async () => {
    const other = new HostNetwork({
      ...testNetwork(await mkdtemp(join(tmpdir(), "vmlet-network-"))),
      cidr: options.cidr!,
    });
    await other.ensure();
    try {
      await expect(network.claim()).rejects.toThrow(`network.cidr ${options.cidr}: this host has`);
      await network.attachNamespace("a");
      await network.claim();
    } finally {
      await other.remove();
    }
  });

  test("traffic is counted from the machine's side", async () => {
    const machine = await network.attachNamespace("a");
    const before = (await network.counters("a"))!;
    await answers(undefined, machine);
    const after = (await network.counters("a"))!;
    expect(after.rx_bytes - before.rx_bytes).toBeGreaterThan(50);
    expect(after.tx_bytes - before.tx_bytes).toBeGreaterThan(50);
  });

  test("a sweep removes what belongs to no machine and spares the rest", async () => {
    const kept = await network.attachNamespace("kept");
    const gone = await network.attachNamespace("gone");
    const tap = await network.attachTap("tap");
    await network.sweep(new Set(["kept"]));
    expect(existsSync(kept.netns!)).toBe(true);
    expect(existsSync(gone.netns!)).toBe(false);
    expect(existsSync(`/sys/class/net/${tap.link}`)).toBe(false);
    expect(await network.find("gone")).toBeUndefined();
  });

  test("detaching twice, and what never was, succeeds", async () => {
    await network.attachNamespace("a");
    await network.detach("a");
    await network.detach("a");
    await network.detach("never");
  });
});
