/** `network.cidr: node`: what a Node's agent may have machines' addresses be, and when they are. */
import { mkdirSync, mkdtempSync, readFileSync, rmdirSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { beforeEach, describe, expect, test, vi } from "vitest";
import { hostsOwn, hostsOwnIpv6 } from "../../../providers/local/network/host-ranges.ts";
import { HostNetwork, type NetworkOptions, refusedRanges } from "../../../providers/local/network/network.ts";
import { NodeRange } from "../../../providers/local/network/node-range.ts";
import { ownerLabels } from "../../../src/provider/owner.ts";
import type { MachineSpec } from "../../../src/provider/machine.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { parseIpv4Range, parseIpv6Range } from "../../../src/util/cidr.ts";
import { settle } from "../../support/virtual-clock.ts";

const OWN = ownerLabels("c1", "burst-0");
const OTHER = ownerLabels("c1", "burst-1");
const signal = new AbortController().signal;
const options: Omit<NetworkOptions, "dir"> = { bridge: "unittest0", cidr: "node", podCidrs: ["198.18.0.0/16"] };
const machineOf = (labels: Record<string, string>, more: Partial<MachineSpec> = {}): MachineSpec => ({
  labels,
  restart_policy: "never",
  containers: [{ name: "c", image: "i" }],
  ...more,
});

let stateDir: string;
let network: HostNetwork;
let range: NodeRange;

/** A backend on what an earlier one has left. */
function begin(more: Partial<NetworkOptions> = {}): void {
  network = new HostNetwork({ dir: join(stateDir, "network"), ...options, ...more });
  range = NodeRange.of({ ...options, ...more }, { stateDir, logger: silentLogger, network })!;
}

/** A machine that has an address. */
function lease(address: string, subnet: string): void {
  mkdirSync(join(stateDir, "network/leases"), { recursive: true });
  writeFileSync(join(stateDir, "network/leases", address), "m-1");
  writeFileSync(join(stateDir, "network/range"), subnet);
}

const put = (ranges: string[], labels = OWN) => range.api.put({ labels, ranges }, { signal });
const serves = (labels: Record<string, string>, more: Partial<MachineSpec> = {}) => {
  range.assertServes(machineOf(labels, more));
  return true;
};

beforeEach(() => {
  stateDir = mkdtempSync(join(tmpdir(), "vmlet-unit-"));
  begin();
});

describe("the range of a backend whose addresses are a Node's", () => {
  test("is none until it is told: machines wait, but for those on the host's network", async () => {
    expect(() => serves(OWN)).toThrow("no agent has told one");
    expect(() => serves({})).toThrow("no agent has told one");
    expect(serves(OWN, { host: { network: true } })).toBe(true);
    expect(await range.api.get({ signal })).toEqual({
      ...{ within: ["198.18.0.0/16"], labels: {}, ranges: [], state: "none" },
    });
  });

  test("is the Node's own, of both families the IPv4 one, and is told as often as one likes", async () => {
    for (let times = 0; times < 2; times++)
      expect(await put(["198.18.7.0/24", "fd00::/64"])).toMatchObject({ ranges: ["198.18.7.0/24"], state: "ready" });
    expect([serves(OWN), network.range.subnet?.gateway]).toEqual([true, "198.18.7.1"]);
    expect(serves({})).toBe(true);
  });

  describe("of both families, where its owner allows IPv6", () => {
    const podCidrs = ["198.18.0.0/16", "fd00:10::/48"];
    const node = ["198.18.7.0/24", "fd00:10:0:7::/64"];
    beforeEach(() => begin({ podCidrs }));

    test("is both of the Node's, whose machines have an address of each", async () => {
      expect(await put(node)).toMatchObject({ within: podCidrs, ranges: node, state: "ready" });
      expect(await put(node.toReversed())).toMatchObject({ ranges: node, state: "ready" });
      expect(network.addressesOf("198.18.7.9")).toEqual(["198.18.7.9", "fd00:10:0:7::9"]);
    });

    test("is the IPv4 one of a Node that has no other", async () => {
      expect(await put(["198.18.7.0/24"])).toMatchObject({ ranges: ["198.18.7.0/24"], state: "ready" });
      expect(network.addressesOf("198.18.7.9")).toEqual(["198.18.7.9"]);
    });

    test("waits for machines that have IPv4 alone", async () => {
      lease("198.18.7.2", "198.18.7.0/24");
      begin({ podCidrs });
      const waiting = await put(node);
      expect(waiting).toMatchObject({ ranges: node, state: "waiting" });
      expect(waiting.message).toContain(`addresses of 198.18.7.0/24: new ones wait`);
    });

    test.each([
      [["198.18.7.0/24", "fd00:11::/64"], "lies outside of what this backend's owner allows"],
      [["198.18.7.0/24", "fe80::/64"], "loopback, link-local, multicast"],
      [["198.18.7.0/24", "fd00:10:0:7::/64", "fd00:10:0:8::/64"], "is of the same family"],
      [["fd00:10:0:7::/64"], "the Node needs an IPv4 podCIDR too"],
      [["198.18.7.0/24", "fd00:10:0:7::/121"], "an IPv6 range with room for as many machines"],
    ])("is not %j: %s", async (ranges, why) => {
      await expect(put(ranges)).rejects.toThrow(why);
    });

    test("is none that this host has elsewhere", async () => {
      const interfaces = { eth0: [{ family: "IPv6", address: "fd00:10:0:7::5", cidr: "fd00:10:0:7::5/64" }] };
      const range6 = parseIpv6Range("fd00:10:0:7::/64")!;
      const routes = (...lines: string[]) => lines.map((line) => `${line}\n`).join("");
      const fault = (bridge: string, ofHost: object) =>
        hostsOwnIpv6(range6, bridge, { interfaces: {}, routes: "", ...ofHost });
      expect(fault("vmlet0", { interfaces })).toBe("this host has fd00:10:0:7::5/64 on eth0");
      expect(fault("eth0", { interfaces })).toBeUndefined();
      const [none, flags] = ["0".repeat(32), "00000100 00000001 00000000 00000001"];
      const route = (destination: string, prefix: string, name: string) =>
        `${destination} ${prefix} ${none} 00 ${none} ${flags}     ${name}`;
      const part = route("fd000010000000070000000000010000", "70", "eth1");
      expect(fault("vmlet0", { routes: routes(part) })).toBe("this host has a route to fd00:10:0:7::1:0/112 by eth1");
      const others = routes(
        route("fd000010000000070000000000010000", "70", "vmlet0"),
        route("fd000010000000070000000000000001", "80", "lo"),
        // How the cluster's other hosts are reached.
        route("fd000010000000000000000000000000", "30", "eth1"),
        route(none, "00", "eth1"),
      );
      expect(fault("vmlet0", { routes: others })).toBeUndefined();
    });
  });

  test("is found again by the next backend", async () => {
    await put(["198.18.7.0/24"]);
    begin();
    vi.spyOn(network, "ensure").mockResolvedValue();
    expect(await range.api.get({ signal })).toMatchObject({ labels: OWN, ranges: ["198.18.7.0/24"], state: "ready" });
    expect(serves(OWN)).toBe(true);
  });

  test.each(["", "[]", '{"labels":{},"range":"0.0.0.0/0"}', '{"labels":{"a":1},"range":"198.18.7.0/24"}'])(
    "is told again where the file was torn: %j",
    async (text) => {
      await put(["198.18.7.0/24"]);
      writeFileSync(join(stateDir, "pod-range.json"), text);
      begin();
      expect(() => serves(OWN)).toThrow("no agent has told one");
      expect(await put(["198.18.7.0/24"])).toMatchObject({ state: "ready" });
    },
  );

  test("is one node's: another is refused by name, and so are its machines, until it is given back", async () => {
    await put(["198.18.7.0/24"]);
    await expect(put(["198.18.8.0/24"], OTHER)).rejects.toThrow(
      /those of node burst-0 of cluster .*a backend of its own/,
    );
    await expect(range.api.delete({ labels: OTHER, signal })).rejects.toMatchObject({ code: "conflict" });
    expect(() => serves(OTHER)).toThrow("those of node burst-0 of cluster");
    await range.api.delete({ labels: OWN, signal });
    await range.api.delete({ labels: OWN, signal });
    expect(() => serves(OWN)).toThrow("no agent has told one");
    expect(await put(["198.18.8.0/24"], OTHER)).toMatchObject({ state: "ready" });
  });

  test("is none when the Node has another that is refused: the cluster may have given the former to another node", async () => {
    await put(["198.18.7.0/24"]);
    await expect(put(["127.0.0.0/24"])).rejects.toMatchObject({ code: "invalid" });
    expect(() => serves(OWN)).toThrow("no agent has told one");
    begin();
    expect(() => serves(OWN)).toThrow("no agent has told one");
  });

  test("is nobody's once it was given back, also of a client that names no node", async () => {
    await put(["198.18.7.0/24"]);
    await range.api.delete({ labels: OWN, signal });
    expect(() => serves({})).toThrow("no agent has told one");
  });

  test("is in use only when the runtime's network has it too", async () => {
    let fails = true;
    const onRange = () => (fails ? Promise.reject(new Error("No space left on device")) : Promise.resolve());
    begin({ onRange });
    await expect(put(["198.18.7.0/24"])).rejects.toThrow("No space left");
    expect((await range.api.get({ signal }).catch(() => ({ state: "unknown" }))).state).not.toBe("ready");
    fails = false;
    expect(await put(["198.18.7.0/24"])).toMatchObject({ state: "ready" });
  });

  test("waits for a machine that is being attached: it gets an address of the one before", async () => {
    await put(["198.18.7.0/24"]);
    const ready = Promise.withResolvers<void>();
    vi.spyOn(network, "ensure").mockReturnValueOnce(ready.promise);
    const adopted = network.adopt("m", {
      address: "198.18.7.2",
      link: "veth0",
      mac: "02:00:00:00:00:01",
      netns: () => "",
    });
    await settle();
    expect(await put(["198.18.8.0/24"])).toMatchObject({ state: "waiting" });
    ready.resolve();
    await adopted.catch(() => undefined);
    expect(network.range.subnet?.cidr).toBe("198.18.7.0/24");
  });

  test("waits for machines of another range, which keep their addresses", async () => {
    lease("10.99.0.2", "10.99.0.0/16");
    begin();
    expect(await put(["198.18.7.0/24"])).toMatchObject({
      state: "waiting",
      message: expect.stringContaining("machines still have addresses of 10.99.0.0/16") as string,
    });
    expect(network.range.subnet?.cidr).toBe("10.99.0.0/16");
    expect(() => serves(OWN)).toThrow("new ones wait until they are deleted");
    begin();
    expect([network.range.subnet?.cidr, network.range.waitsFor === undefined]).toEqual(["10.99.0.0/16", false]);
  });

  test.each([
    [["127.0.0.0/24"], "loopback"],
    [["169.254.1.0/24"], "loopback, link-local"],
    [["224.0.0.0/24"], "multicast"],
    [["198.19.0.0/24"], "outside of what this backend's owner allows: 198.18.0.0/16"],
    [["198.16.0.0/12"], "outside of what this backend's owner allows"],
    [["198.18.7.0/30"], "a prefix of 8 to 29"],
    [["198.18.7.0"], "no range of addresses"],
    [["198.18.7.0/24", "198.18.8.0/24"], "of the same family"],
    [["fd00::/64"], "needs an IPv4 podCIDR too"],
    [["198.18.66.0/24"], "overlaps 198.18.66.128/25, which machines may not reach"],
  ])("is never %j", async (ranges, why) => {
    begin({ podCidrs: ["198.18.0.0/16"], denyCidrs: ["198.18.66.128/25"] });
    await expect(put(ranges)).rejects.toMatchObject({
      code: "invalid",
      message: expect.stringContaining(why) as string,
    });
    expect((await range.api.get({ signal })).state).toBe("none");
  });

  test("may be anywhere in the cluster's, of which no image is pulled", () => {
    expect(refusedRanges(options)).toEqual([
      "198.18.0.0/16",
      "169.254.0.0/16",
      "fd00:ec2::254/128",
      "fd20:ce::254/128",
    ]);
  });

  test.each<[string, () => Promise<unknown>, string[]]>([
    ["has another", () => put(["198.18.8.0/24"]), ["198.18.8.0/24"]],
    ["has another that is refused", () => put(["127.0.0.0/24"]), []],
    ["gives it back", () => range.api.delete({ labels: OWN, signal }), []],
  ])("is given out no more when its node %s and the disk is full, which is written later", async (_, tell, written) => {
    await put(["198.18.7.0/24"]);
    const obstacle = join(stateDir, "pod-range.json.tmp");
    mkdirSync(obstacle);
    await expect(tell()).rejects.toThrow();
    expect(() => serves(OWN)).toThrow("no agent has told one");
    expect((await range.api.get({ signal })).state).toBe("none");
    rmdirSync(obstacle);
    await tell().catch(() => undefined);
    begin();
    vi.spyOn(network, "ensure").mockResolvedValue();
    expect((await range.api.get({ signal })).ranges).toEqual(written);
  });

  test("is written before it is used: a disk that is full leaves what was", async () => {
    await put(["198.18.7.0/24"]);
    const before = readFileSync(join(stateDir, "pod-range.json"), "utf8");
    // A folder in the way of the file that is to take its place.
    mkdirSync(join(stateDir, "pod-range.json.tmp"));
    await expect(put(["198.18.8.0/24"])).rejects.toThrow();
    expect(readFileSync(join(stateDir, "pod-range.json"), "utf8")).toBe(before);
    expect(network.range.subnet?.cidr).toBe("198.18.7.0/24");
  });
});

describe("what a host has of a range", () => {
  const range = parseIpv4Range("10.96.1.0/24")!;
  const HEAD = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n";
  const route = (name: string, destination: string, gateway: string, mask: string) =>
    `${HEAD}${name}\t${destination}\t${gateway}\t0003\t0\t0\t0\t${mask}\t0\t0\t0\n`;
  const address = (cidr: string) => [{ family: "IPv4", address: cidr.split("/")[0]!, cidr }];
  const fault = (interfaces: Record<string, ReturnType<typeof address>>, routes = HEAD) =>
    hostsOwn(range, "vmlet0", { interfaces, routes });

  test("is in the way: an address in it, a network that it is part of, a route to a part of it", () => {
    expect(fault({ eth0: address("10.96.1.7/32") })).toBe("this host has 10.96.1.7/32 on eth0");
    expect(fault({ eth0: address("10.0.0.4/8") })).toBe("this host has 10.0.0.4/8 on eth0");
    const part = route("eth1", "8001600A", "0100000A", "80FFFFFF");
    expect(fault({}, part)).toBe("this host has a route to 10.96.1.128/25 by eth1");
  });

  test("is not: the bridge's own, the way to the cluster's other hosts, a VXLAN interface's first address", () => {
    expect(fault({ vmlet0: address("10.96.1.1/24"), eth0: address("192.0.2.1/24") })).toBeUndefined();
    expect(fault({}, route("vmlet0", "0001600A", "00000000", "00FFFFFF"))).toBeUndefined();
    expect(fault({}, route("eth0", "0002600A", "0C0200C0", "00FFFFFF"))).toBeUndefined();
    expect(fault({}, route("wg0", "0000600A", "00000000", "0000FFFF"))).toBeUndefined();
    expect(fault({}, route("eth0", "00000000", "010200C0", "00000000"))).toBeUndefined();
    expect(fault({ "flannel.1": address("10.96.1.0/32") })).toBeUndefined();
  });
});
