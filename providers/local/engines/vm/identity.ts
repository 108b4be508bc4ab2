/** What makes a booted guest this machine: one shell script, run over the control channel. */
import { randomBytes } from "node:crypto";
import { ipv6Number, type MachineSpec } from "../../../../src/provider/kit/index.ts";
import { hostsFile, kernelHostname, resolvConf } from "../../bundle/host-files.ts";
import type { CniAddress, CniAttachment } from "../../network/cni/network.ts";
import { commandLine, quote, type GuestCommand } from "./control.ts";
import type { VmAttachment } from "./vm-network.ts";

/** As guest/identity.c has it. */
const SEED_BYTES = 64;

/** What makes it this machine. */
interface MachineIdentity {
  machineId: string;
  spec: MachineSpec;
  addresses: readonly string[];
  nowMs: number;
  hostResolvConf: string;
  /** Makes its volumes. */
  prepare: readonly GuestCommand[];
}

/**
 * What a VM gets of its own before a machine is put into it: two copies of one template would otherwise draw the same
 * random numbers, and answer to one address.
 */
export function vmScript(attachment: VmAttachment): string {
  const { address, prefix, mac } = attachment;
  const mask = (0xffffffff << (32 - prefix)) >>> 0;
  const netmask = [24, 16, 8, 0].map((shift) => (mask >>> shift) & 255).join(".");
  if ("mtu" in attachment)
    return [
      file("/run/seed", randomBytes(SEED_BYTES)),
      ...(attachment.ipv6 === undefined ? [] : confining([...SECOND_CONF, "accept_ra"])),
      `identity ${mac} ${address} ${netmask} < /run/seed`,
      ...routesOf(attachment),
    ].join("\n");
  const { gateway, ipv6 } = attachment;
  const second = ipv6 && [bytesOf(ipv6.address), bytesOf(ipv6.gateway), ipv6.gatewayMac];
  return [
    file("/run/seed", randomBytes(SEED_BYTES)),
    // There is nobody to ask whether an address is taken, and no other way than by the host: second-family.ts.
    ...(second === undefined ? [] : confining(SECOND_CONF)),
    `identity ${[mac, address, netmask, gateway, second ?? []].flat().join(" ")} < /run/seed`,
  ].join("\n");
}

/** Where a network's plugins let packets go. */
function routesOf(attachment: CniAttachment): string[] {
  const { mtu, ipv6 } = attachment;
  const second =
    ipv6 === undefined
      ? []
      : [`ip -6 address add ${quote(`${ipv6.address}/${ipv6.prefix}`)} dev eth0`, ...ways("ip -6", ipv6)];
  return [`ip link set eth0 mtu ${mtu}`, ...ways("ip", attachment), ...second];
}

/** A gateway may be on no range of the machine's. */
function ways(ip: string, { gateway, routes }: CniAddress): string[] {
  const all = [...routes, ...(gateway === undefined ? [] : [{ to: "default", via: gateway }])];
  return all.map(({ to, via }) => {
    const through = via === undefined ? "dev eth0" : `via ${quote(via)} dev eth0 onlink`;
    return `${ip} route replace ${quote(to)} ${through}`;
  });
}

const confining = (names: readonly string[]) => names.map((name) => `echo 0 > /proc/sys/net/ipv6/conf/eth0/${name}`);

const SECOND_CONF = ["accept_dad", "accept_redirects"];

/** `fd00::2` -> `fd:00:00:...:02` */
function bytesOf(ipv6: string): string {
  const hex = ipv6Number(ipv6).toString(16).padStart(32, "0");
  return hex.match(/../g)!.join(":");
}

export function machineScript(identity: MachineIdentity): string {
  const { machineId, spec, addresses, nowMs, hostResolvConf, prepare } = identity;
  const hostname = kernelHostname(spec, machineId);
  const sysctls = (spec.security?.sysctls ?? []).map(
    ({ name, value }) => `echo ${quote(value)} > /proc/sys/${quote(name.replaceAll(".", "/"))}`,
  );
  return [
    `clock ${Math.floor(nowMs)}`,
    `echo ${quote(hostname)} > /proc/sys/kernel/hostname`,
    file("/run/etc/hosts", hostsFile(spec, addresses)),
    file("/run/etc/hostname", `${hostname}\n`),
    file("/run/etc/resolv.conf", resolvConf(spec.dns) ?? hostResolvConf),
    ...sysctls,
    ...prepare.map(commandLine),
  ].join("\n");
}

/** By the shell's own printf: in an emulated processor, each program that need not be started counts. */
function file(path: string, content: string | Buffer): string {
  const escaped = [...Buffer.from(content)].map((byte) => {
    const plain = byte >= 0x20 && byte < 0x7f && byte !== 0x25 && byte !== 0x27 && byte !== 0x5c;
    return plain ? String.fromCharCode(byte) : `\\${byte.toString(8).padStart(3, "0")}`;
  });
  return `printf '${escaped.join("")}' > ${path}`;
}
