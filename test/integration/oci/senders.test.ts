/** A machine that forges frames: what is on its link is its own address or nothing, in whatever shape it comes. */
import { spawn, type ChildProcess } from "node:child_process";
import { mkdtemp } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { run } from "../../../providers/local/host/command.ts";
import { HostNetwork, type Attachment, type NetworkOptions } from "../../../providers/local/network/network.ts";
import { ARP, arpReply, frame, IP, QINQ, sendFrames, snapFrame, udp, VLAN } from "../../support/frames.ts";
import { missingForNetwork, testNetwork } from "../../support/host.ts";

const missing = missingForNetwork();
if (missing !== undefined) console.warn(`senders: left out, ${missing}`);

const PORT = 23_500;
/** A group address that a bridge keeps for itself, and hands to the host's own stack: LLDP's. */
const LINK_LOCAL = "01:80:c2:00:00:0e";
/** The same, of the kind that bridges look at before they hand it on. */
const OTHER_LINK_LOCAL = "01:80:c2:00:00:03";

type Shape = (to: string, from: string, type: number, payload: Buffer) => Buffer;
const SHAPES: [string, Shape][] = [
  ["as it is", (to, from, type, payload) => frame(to, from, type, payload)],
  ["with a priority tag", (to, from, type, payload) => frame(to, from, type, payload, [VLAN])],
  ["with a provider's tag", (to, from, type, payload) => frame(to, from, type, payload, [QINQ])],
  ["with two tags", (to, from, type, payload) => frame(to, from, type, payload, [QINQ, VLAN])],
  ["with two priority tags", (to, from, type, payload) => frame(to, from, type, payload, [VLAN, VLAN])],
  ["in 802.3 with SNAP", snapFrame],
];

describe.skipIf(missing !== undefined)("a machine that forges frames", () => {
  let options: NetworkOptions;
  let network: HostNetwork;
  let forger: Attachment;
  let victim: Attachment;
  let neighbour: Attachment;
  let listeners: ChildProcess[];

  beforeAll(async () => {
    options = testNetwork(await mkdtemp(join(tmpdir(), "vmlet-network-")));
    network = new HostNetwork(options);
  });
  beforeEach(async () => {
    listeners = [];
    [forger, victim, neighbour] = [
      await network.attachNamespace("forger"),
      await network.attachNamespace("victim"),
      await network.attachNamespace("neighbour"),
    ];
  });
  afterEach(async () => {
    for (const child of listeners) child.kill("SIGKILL");
    await network.sweep(new Set());
  });
  afterAll(() => network.remove());

  /** What arrives on a UDP port, as `FROM TEXT`, in the machine's namespace or on this host. */
  const listen = async (machine?: Attachment) => {
    const program = `const s=require("dgram").createSocket("udp4").on("message",(m,f)=>console.log(f.address,m.toString())).bind(${PORT},()=>console.log("up"))`;
    const node = [process.execPath, "-e", program];
    const command = machine === undefined ? node : ["nsenter", `--net=${machine.netns}`, ...node];
    const child = spawn(command[0]!, command.slice(1), { stdio: ["ignore", "pipe", "inherit"] });
    listeners.push(child);
    let output = "";
    child.stdout.setEncoding("utf8").on("data", (text: string) => (output += text));
    const lines = () => output.split("\n").slice(1, -1);
    await expect.poll(() => output, { timeout: 10_000 }).toContain("up\n");
    return lines;
  };
  /** An honest message, after which all that was sent before has been looked at. */
  const honest = () => frame(neighbour.mac, forger.mac, IP, udp(forger.address, neighbour.address, PORT, "honest"));
  /** The neighbour has the machine in its table, and believes the next word that it hears of it. */
  const remember = ({ address, mac }: Attachment) => {
    const believe = "echo 0 >/proc/sys/net/ipv4/neigh/eth0/locktime";
    const script = `${believe}; ip neigh replace ${address} lladdr ${mac} dev eth0 nud stale`;
    return run("nsenter", [`--net=${neighbour.netns}`, "sh", "-c", script]);
  };
  const gatewayMac = async () =>
    (await run("cat", [`/sys/class/net/${options.bridge}/address`])).stdout.toString().trim();

  test.each(SHAPES)("cannot send from another's IP address: a packet %s", async (_title, shape) => {
    const received = await listen(neighbour);
    const packet = udp(victim.address, neighbour.address, PORT, "forged");
    await sendFrames(forger.netns!, shape(neighbour.mac, forger.mac, IP, packet), honest());
    await expect.poll(received).toContain(`${forger.address} honest`);
    expect(received()).toEqual([`${forger.address} honest`]);
  });

  test.each(SHAPES)("cannot send from another's MAC: a packet %s", async (_title, shape) => {
    const received = await listen(neighbour);
    const packet = udp(forger.address, neighbour.address, PORT, "forged");
    await sendFrames(forger.netns!, shape(neighbour.mac, victim.mac, IP, packet), honest());
    await expect.poll(received).toContain(`${forger.address} honest`);
    expect(received()).toEqual([`${forger.address} honest`]);
  });

  test.each(SHAPES)(
    "cannot take another's address in its neighbours' tables: an ARP reply %s",
    async (_title, shape) => {
      const received = await listen(neighbour);
      const neighbourOf = async () =>
        (await run("nsenter", [`--net=${neighbour.netns}`, "ip", "neigh", "show", victim.address])).stdout.toString();
      await remember(victim);
      const sender = arpReply(forger.mac, victim.address, neighbour);
      await sendFrames(forger.netns!, shape(neighbour.mac, forger.mac, ARP, sender), honest());
      await expect.poll(received).toContain(`${forger.address} honest`);
      expect(await neighbourOf()).toContain(victim.mac);
    },
  );

  test("cannot say in ARP that its own address is at another's MAC", async () => {
    const received = await listen(neighbour);
    const reply = arpReply(victim.mac, forger.address, neighbour);
    await remember(forger);
    await sendFrames(forger.netns!, frame(neighbour.mac, forger.mac, ARP, reply), honest());
    await expect.poll(received).toContain(`${forger.address} honest`);
    const { stdout } = await run("nsenter", [`--net=${neighbour.netns}`, "ip", "neigh", "show", forger.address]);
    expect(stdout.toString()).toContain(forger.mac);
  });

  test.each([LINK_LOCAL, OTHER_LINK_LOCAL])(
    "cannot have the bridge learn another's MAC by a frame to %s",
    async (to) => {
      const received = await listen(neighbour);
      await sendFrames(
        victim.netns!,
        frame(neighbour.mac, victim.mac, IP, udp(victim.address, neighbour.address, PORT, "here")),
      );
      await expect.poll(received).toContain(`${victim.address} here`);
      const packet = udp(forger.address, neighbour.address, PORT, "x");
      await sendFrames(forger.netns!, frame(to, victim.mac, IP, packet), honest());
      await expect.poll(received).toContain(`${forger.address} honest`);
      const { stdout } = await run("bridge", ["fdb", "show", "br", options.bridge!]);
      const learnt = stdout
        .toString()
        .split("\n")
        .filter((line) => line.startsWith(victim.mac));
      expect(learnt.join()).toContain(victim.link);
      expect(learnt.join()).not.toContain(forger.link);
    },
  );

  test.each([LINK_LOCAL, OTHER_LINK_LOCAL])("cannot reach what listens on this host by a frame to %s", async (to) => {
    const onHost = await listen();
    const received = await listen(neighbour);
    const packet = udp(forger.address, forger.gateway, PORT, "past the rules");
    await sendFrames(forger.netns!, frame(to, forger.mac, IP, packet), honest());
    await expect.poll(received).toContain(`${forger.address} honest`);
    expect(onHost()).toEqual([]);
  });

  test.each(SHAPES)("cannot reach what listens on this host by a packet %s", async (_title, shape) => {
    const onHost = await listen();
    const received = await listen(neighbour);
    const packet = udp(forger.address, forger.gateway, PORT, "past the rules");
    await sendFrames(forger.netns!, shape(await gatewayMac(), forger.mac, IP, packet), honest());
    await expect.poll(received).toContain(`${forger.address} honest`);
    expect(onHost()).toEqual([]);
  });

  test("a backend that starts again holds its running machines to the same rules", async () => {
    network = new HostNetwork(options);
    await network.ensure();
    const received = await listen(neighbour);
    const packet = udp(victim.address, neighbour.address, PORT, "forged");
    await sendFrames(forger.netns!, frame(neighbour.mac, forger.mac, IP, packet), honest());
    await expect.poll(received).toContain(`${forger.address} honest`);
    expect(received()).toEqual([`${forger.address} honest`]);
  });
});
