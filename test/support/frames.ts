/** Ethernet frames made by hand, and a way to send them from a network namespace: what a hostile machine would put on its link. */
import { isIPv4 } from "node:net";
import { run } from "../../providers/local/host/command.ts";

export const IP = 0x0800;
export const ARP = 0x0806;
export const VLAN = 0x8100;
export const QINQ = 0x88a8;

/** An Ethernet II frame; `tags` are VLAN headers of id 0 before the type, outermost first. */
export function frame(to: string, from: string, type: number, payload: Buffer, tags: readonly number[] = []): Buffer {
  const words = [...tags.flatMap((tag) => [tag, 0]), type];
  return Buffer.concat([mac(to), mac(from), ...words.map(word), payload]);
}

/** 802.3 with LLC and SNAP: the type comes after the length. */
export function snapFrame(to: string, from: string, type: number, payload: Buffer): Buffer {
  const llc = Buffer.from("aaaa03000000", "hex");
  return Buffer.concat([mac(to), mac(from), word(llc.length + 2 + payload.length), llc, word(type), payload]);
}

/** An ARP reply of `ip` being at `hardware`, told to a neighbour. */
export function arpReply(hardware: string, ip: string, to: { mac: string; address: string }): Buffer {
  const header = Buffer.from("0001080006040002", "hex");
  return Buffer.concat([header, mac(hardware), ipv4(ip), mac(to.mac), ipv4(to.address)]);
}

/** A UDP packet over IPv4, without the UDP checksum. */
export function udp(from: string, to: string, port: number, text: string): Buffer {
  const data = Buffer.from(text);
  const datagram = Buffer.concat([word(40_000), word(port), word(8 + data.length), word(0), data]);
  const header = Buffer.from("4500000000000000401100000000000000000000", "hex");
  header.writeUInt16BE(header.length + datagram.length, 2);
  ipv4(from).copy(header, 12);
  ipv4(to).copy(header, 16);
  header.writeUInt16BE(checksum(header), 10);
  return Buffer.concat([header, datagram]);
}

/** AF_PACKET, SOCK_RAW, SIOCGIFINDEX: perl, which every Debian has, can open such a socket; Node cannot. */
const SENDER = String.raw`
  socket(my $s, 17, 3, 0) or die "socket: $!";
  my $interface = pack("a16 x16", "eth0");
  ioctl($s, 0x8933, $interface) or die "ioctl: $!";
  my $to = pack("S n i S C C a8", 17, 0, unpack("x16 i", $interface), 0, 0, 0, "");
  for (@ARGV) { defined send($s, pack("H*", $_), 0, $to) or die "send: $!"; }
`;

/** Puts frames on eth0 of a network namespace, in order. */
export async function sendFrames(netns: string, ...frames: readonly Buffer[]): Promise<void> {
  const texts = frames.map((bytes) => bytes.toString("hex"));
  await run("nsenter", [`--net=${netns}`, "perl", "-e", SENDER, ...texts], { signal: AbortSignal.timeout(10_000) });
}

function mac(text: string): Buffer {
  return Buffer.from(text.replaceAll(":", ""), "hex");
}

function ipv4(text: string): Buffer {
  if (!isIPv4(text)) throw new Error(`${text} is no IPv4 address`);
  return Buffer.from(text.split(".").map(Number));
}

function word(value: number): Buffer {
  return Buffer.from([value >> 8, value & 0xff]);
}

function checksum(header: Buffer): number {
  let sum = 0;
  for (let at = 0; at < header.length; at += 2) sum += header.readUInt16BE(at);
  while (sum > 0xffff) sum = (sum & 0xffff) + (sum >> 16);
  return ~sum & 0xffff;
}
