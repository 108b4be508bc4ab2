/** A network of two families: what a machine's IPv6 address reaches, and what cannot be forged by it. */
import { spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync, readFileSync } from "node:fs";
import { mkdtemp, writeFile } from "node:fs/promises";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, afterEach, beforeAll, describe, expect, test } from "vitest";
import { run } from "../../../providers/local/host/command.ts";
import { type Attachment, HostNetwork, type NetworkOptions } from "../../../providers/local/network/network.ts";
import { missingForNetwork, secondRange, testNetwork } from "../../support/host.ts";
import { leaveOut } from "../../support/left-out.ts";

const lacksIpv6 = existsSync("/proc/net/if_inet6") ? undefined : "this kernel has no IPv6";
const missing = missingForNetwork() ?? lacksIpv6;

/** Connects; ends with 0 when the other side answers, by a refusal too where that is enough, or by that alone. */
const PROBE = `const [host, port, refusal] = process.argv.slice(1);
const socket = require("net").connect(Number(port), host);
socket.setTimeout(700, () => process.exit(1));
socket.on("connect", () => process.exit(refusal === "only" ? 1 : 0));
socket.on("error", ({ code }) => process.exit(refusal !== "bad" && code === "ECONNREFUSED" ? 0 : 1));`;

const ECHO = `const server = require("net").createServer((socket) => socket.pipe(socket));
server.listen(0, "::", () => console.log(server.address().port));`;

/** One line there and back, ten times. */
const CONVERSE = `const socket = require("net").connect(Number(process.argv[2]), process.argv[1]);
let times = 0;
socket.setTimeout(3000, () => process.exit(1));
socket.on("connect", () => socket.write("x"));
socket.on("data", () => (++times === 10 ? process.exit(0) : socket.write("x")));`;

/** A router advertisement, and that an address of another one's is here: the two lies of CVE-2020-10749 and of its kind. */
const LIE = `import socket, sys
target, forged, mac = sys.argv[1:4]
raw = socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6)
raw.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, 255)
raw.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_UNICAST_HOPS, 255)
raw.bind(socket.getaddrinfo("fe80::bad%eth0", 0, socket.AF_INET6)[0][4])
link = bytes.fromhex(mac.replace(":", ""))
for to in (target, "ff02::1%eth0"):
    where = socket.getaddrinfo(to, 0, socket.AF_INET6)[0][4]
    try:
        raw.sendto(bytes([134, 0, 0, 0, 64, 0, 7, 8]) + bytes(8) + bytes([1, 1]) + link, where)
        raw.sendto(bytes([136, 0, 0, 0, 0x20, 0, 0, 0]) + socket.inet_pton(socket.AF_INET6, forged) + bytes([2, 1]) + link, where)
    except OSError as error:
        print(error)
`;

if (missing !== undefined) leaveOut("machines of two families", [missing]);
describe.skipIf(missing !== undefined)("a machine of two families", () => {
  let options: NetworkOptions;
  let network: HostNetwork;
  const inside = async (attachment: Attachment, ...command: string[]) =>
    (await run("nsenter", [`--net=${attachment.netns}`, ...command], { signal: AbortSignal.timeout(10_000) })).stdout;
  const answers = async (
    from: Attachment | undefined,
    host: string,
    port = 9,
    refusal: "good" | "bad" | "only" = "good",
  ) => {
    const args = ["-e", PROBE, host, String(port), refusal];
    const attempt = from === undefined ? run(process.execPath, args) : inside(from, process.execPath, ...args);
    return await attempt.then(
      () => true,
      () => false,
    );
  };
  const ipv6Of = ({ ipv6 }: Attachment) => ipv6!.address;
  const neighbours = async () =>
    (await run("ip", ["-6", "neighbour", "show", "dev", options.bridge!, "nud", "permanent"])).stdout.toString();

  beforeAll(async () => {
    options = testNetwork(await mkdtemp(join(tmpdir(), "vmlet-dual-")));
    options = { ...options, cidr: `${options.cidr},${secondRange(options.cidr!)}` };
    network = new HostNetwork(options);
  });
  afterEach(async () => {
    await network.sweep(new Set());
    network.close();
  });
  afterAll(async () => await network.remove());

  test("has the address that goes with its IPv4 one, and is reached by it from this host and from other machines", async () => {
    const [a, b] = [await network.attachNamespace("a"), await network.attachNamespace("b")];
    const last = Number(a.address.split(".")[3]);
    expect(ipv6Of(a)).toBe(`${options.cidr!.split(",")[1]!.replace("/64", "")}${last.toString(16)}`);
    expect((await inside(a, "ip", "-6", "-o", "address", "show", "dev", "eth0")).toString()).toContain(
      `inet6 ${ipv6Of(a)}/128 scope global`,
    );
    expect([await answers(undefined, ipv6Of(a)), await answers(b, ipv6Of(a))]).toEqual([true, true]);
    expect(await answers(b, a.address)).toBe(true);
  });

  test("does not reach what listens on this host, but for ports that are open to machines", async () => {
    const server = createServer((socket) => socket.end());
    await new Promise<void>((resolve) => server.listen(0, "::", resolve));
    const { port } = server.address() as { port: number };
    const machine = await network.attachNamespace("a");
    expect(await answers(machine, machine.ipv6!.gateway, port, "bad")).toBe(false);
    network = new HostNetwork({ ...options, openHostPorts: [port] });
    await network.ensure();
    expect(await answers(machine, machine.ipv6!.gateway, port, "bad")).toBe(true);
    await new Promise((resolve) => server.close(resolve));
    network = new HostNetwork(options);
    await network.ensure();
  });

  test("cannot send from another's address, nor past this host", async () => {
    const [a, b] = [await network.attachNamespace("a"), await network.attachNamespace("b")];
    expect(await answers(b, ipv6Of(a))).toBe(true);
    // Straight to the other's link.
    await inside(b, "ip", "neighbour", "replace", ipv6Of(a), "lladdr", a.mac, "dev", "eth0", "nud", "permanent");
    await inside(b, "ip", "-6", "route", "replace", `${ipv6Of(a)}/128`, "dev", "eth0");
    expect(await answers(b, ipv6Of(a))).toBe(false);
    await inside(b, "ip", "-6", "route", "delete", `${ipv6Of(a)}/128`, "dev", "eth0");
    expect(await answers(b, ipv6Of(a))).toBe(true);
    await inside(b, "ip", "-6", "address", "flush", "dev", "eth0");
    await inside(b, "ip", "address", "add", `${ipv6Of(a)}d/128`, "dev", "eth0", "nodad");
    await inside(b, "ip", "-6", "route", "replace", `${b.ipv6!.gateway}/128`, "dev", "eth0");
    await inside(b, "ip", "-6", "route", "replace", "default", "via", b.ipv6!.gateway);
    expect(await answers(b, ipv6Of(a))).toBe(false);
  });

  test("passes for no router and for no other machine, whatever it says", async () => {
    const [a, b, c] = [
      await network.attachNamespace("a"),
      await network.attachNamespace("b"),
      await network.attachNamespace("c"),
    ];
    const word = async () => [
      (await inside(a, "ip", "-6", "route")).toString(),
      (await inside(a, "ip", "-6", "neighbour")).toString(),
      await neighbours(),
    ];
    const before = await word();
    await inside(b, "ip", "address", "add", "fe80::bad/64", "dev", "eth0", "nodad");
    for (const target of [ipv6Of(a), a.ipv6!.gateway]) await inside(b, "python3", "-c", LIE, target, ipv6Of(c), b.mac);
    expect(await answers(a, ipv6Of(c))).toBe(true);
    expect(await word()).toEqual(before);
  });

  test("reaches nothing that machines never reach, and the outside only where machines may", async () => {
    const [a, b] = [await network.attachNamespace("a"), await network.attachNamespace("b")];
    network = new HostNetwork({ ...options, outbound: "deny", denyCidrs: ["fd00:ec2::254"] });
    await network.ensure();
    const { stdout } = await run("nft", ["list", "table", "inet", `vmlet_${options.bridge}`]);
    expect(stdout.toString()).toContain("ip6 daddr fd00:ec2::254 drop");
    expect(await answers(b, ipv6Of(a))).toBe(true);
    network = new HostNetwork(options);
    await network.ensure();
  });

  test("is made whole when another program has removed the bridge's address, and is forgotten when it goes", async () => {
    const a = await network.attachNamespace("a");
    expect(await neighbours()).toContain(`${ipv6Of(a)} lladdr ${a.mac}`);
    await run("ip", ["-6", "address", "flush", "dev", options.bridge!]);
    expect(await answers(undefined, ipv6Of(a))).toBe(false);
    expect(await network.heal()).toContain("address fd00:99:");
    expect(await answers(undefined, ipv6Of(a))).toBe(true);
    await network.detach("a");
    expect(await neighbours()).not.toContain(ipv6Of(a));
  });

  test("goes on by this host when the kernel there redirects it, to where its rules would not let it go", async () => {
    const [a, b] = [await network.attachNamespace("a"), await network.attachNamespace("b")];
    // Redirects are sent from a link-local address; the bridge has one by itself, a little later.
    await run("ip", ["address", "replace", "fe80::1/64", "dev", options.bridge!, "nodad"]);
    const echo = spawn("nsenter", [`--net=${b.netns}`, process.execPath, "-e", ECHO], {
      stdio: ["ignore", "pipe", "inherit"],
    });
    const [port] = (await once(echo.stdout, "data")) as [Buffer];
    try {
      // Of an open connection the kernel takes a redirect from whoever it is.
      await inside(a, process.execPath, "-e", CONVERSE, ipv6Of(b), port.toString());
      expect((await inside(a, "nstat", "-az", "Icmp6InRedirects")).toString()).toMatch(/Icmp6InRedirects +[1-9]/);
      expect((await inside(a, "ip", "-6", "route", "get", ipv6Of(b))).toString()).toContain(`via ${a.ipv6!.gateway} `);
    } finally {
      echo.kill();
    }
  });

  test.each([0, 1])(
    "reaches a Service's address by this host's rules, with br_netfilter's switch at %d",
    async (sees) => {
      const [a, b] = [await network.attachNamespace("a"), await network.attachNamespace("b")];
      const vip = "fd00:99:ffff::1";
      const ofBridge = `/sys/class/net/${options.bridge}/bridge/nf_call_ip6tables`;
      if (existsSync(ofBridge)) await writeFile(ofBridge, String(sees));
      const table = `service_${options.bridge}`;
      const rules = (to: string) => `add table ip6 ${table}
delete table ip6 ${table}
add table ip6 ${table}
add chain ip6 ${table} pre { type nat hook prerouting priority dstnat; }
add rule ip6 ${table} pre ip6 daddr ${vip} tcp dport 80 dnat to [${to}]:9
`;
      try {
        for (const [from, to] of [
          [a, b],
          [b, a],
          [a, a],
        ] as const) {
          await run("nft", ["-f", "-"], { input: rules(ipv6Of(to)) });
          for (let times = 0; times < 5; times++) expect(await answers(from, vip, 80, "only")).toBe(true);
        }
      } finally {
        await run("nft", ["delete", "table", "ip6", table]);
      }
    },
  );

  test("has a port of all of this host's addresses by IPv6 too, until it goes", async () => {
    const machine = await network.attachNamespace("a");
    const host_port = 20_000 + Math.floor(Math.random() * 10_000);
    await network.openHostPorts("a", [{ port: 9, host_port, protocol: "tcp" }]);
    await network.openHostPorts("a", [{ port: 9, host_port, protocol: "tcp" }]);
    // Nothing listens in the machine: that it refuses is its own word. This host's own socket would accept.
    expect(await answers(undefined, machine.ipv6!.gateway, host_port, "only")).toBe(true);
    const map = async () =>
      (await run("nft", ["list", "map", "inet", `vmlet_${options.bridge}`, "host_ports6"])).stdout.toString();
    expect(await map()).toContain(`tcp . ${host_port} : ${ipv6Of(machine)} . 9`);
    await run("nft", ["flush", "map", "inet", `vmlet_${options.bridge}`, "host_ports6"]);
    expect(await network.heal()).toBe(`host port :: . tcp . ${host_port}`);
    expect(await answers(undefined, machine.ipv6!.gateway, host_port, "only")).toBe(true);
    await network.detach("a");
    expect(await map()).not.toContain(`${host_port}`);
  });

  test("has a port of one IPv6 address of this host, and of no other, until it goes", async () => {
    const [machine] = [await network.attachNamespace("a"), await network.attachNamespace("b")];
    const host_port = 20_000 + Math.floor(Math.random() * 10_000);
    const { gateway } = machine.ipv6!;
    const ports = [{ port: 9, host_port, protocol: "tcp", host_ip: gateway }] as const;
    await network.openHostPorts("a", ports);
    await network.openHostPorts("a", ports);
    const map = async () =>
      (await run("nft", ["list", "map", "inet", `vmlet_${options.bridge}`, "host_ports_at6"])).stdout.toString();
    expect(await map()).toContain(`${gateway} . tcp . ${host_port} : ${ipv6Of(machine)} . 9`);
    expect(await answers(undefined, gateway, host_port, "only")).toBe(true);
    await run("nft", ["flush", "map", "inet", `vmlet_${options.bridge}`, "host_ports_at6"]);
    expect(await network.heal()).toBe(`host port ${gateway} . tcp . ${host_port}`);
    const other = network.openHostPorts("b", [{ port: 9, host_port, protocol: "tcp" }]);
    await expect(other).rejects.toMatchObject({ code: "conflict" });
    await network.detach("a");
    expect(await map()).not.toContain(`${host_port}`);
  });

  test("leaves this host's own way out as it is", () => {
    const conf = "/proc/sys/net/ipv6/conf";
    expect(readFileSync(`${conf}/all/forwarding`, "utf8").trim()).toBe("1");
    expect(readFileSync(`${conf}/${options.bridge}/accept_ra`, "utf8").trim()).toBe("0");
    expect(readFileSync(`${conf}/default/accept_ra`, "utf8").trim()).not.toBe("1");
  });
});
