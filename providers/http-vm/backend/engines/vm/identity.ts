/** What makes a booted guest this machine: one shell script, run over the control channel. */
import { generateKeyPairSync, randomBytes } from "node:crypto";
import type { MachineSpec } from "../../../../../src/provider/kit/index.ts";
import { hostsFile, kernelHostname, resolvConf } from "../oci/host-files.ts";
import type { Attachment } from "../../network/network.ts";
import { commandLine, quote, type GuestCommand } from "./control.ts";
import { SSH_PORT } from "./ssh.ts";

const SEED_BYTES = 64;

/** What a VM has of its own before a machine moves in: randomness, address, and the way in. */
export interface VmIdentity {
  attachment: Attachment;
  /** Public key of the backend. */
  authorizedKey: string;
  hostKey: HostKey;
}

/** What makes it this machine. */
export interface MachineIdentity {
  machineId: string;
  spec: MachineSpec;
  address: string;
  nowMs: number;
  hostResolvConf: string;
  /** Makes its volumes. */
  prepare: readonly GuestCommand[];
}

/** Two copies of one template would otherwise draw the same random numbers, and answer to one address. */
export function vmScript({ attachment, authorizedKey, hostKey }: VmIdentity): string {
  const { address, prefix, gateway, mac } = attachment;
  const mask = (0xffffffff << (32 - prefix)) >>> 0;
  const netmask = [24, 16, 8, 0].map((shift) => (mask >>> shift) & 255).join(".");
  return [
    "umask 077",
    file("/dev/urandom", randomBytes(SEED_BYTES)),
    "reseed < /dev/urandom",
    file("/run/hostkey", hostKey.dropbear),
    file("/root/.ssh/authorized_keys", `${authorizedKey}\n`),
    `ifconfig eth0 hw ether ${mac} ${address} netmask ${netmask} up`,
    `route add default gw ${gateway}`,
    `dropbear -r /run/hostkey -p ${SSH_PORT} -s -P /run/dropbear.pid`,
  ].join("\n");
}

export function machineScript(identity: MachineIdentity): string {
  const { machineId, spec, address, nowMs, hostResolvConf, prepare } = identity;
  const hostname = kernelHostname(spec, machineId);
  const sysctls = (spec.security?.sysctls ?? []).map(
    ({ name, value }) => `echo ${quote(value)} > /proc/sys/${quote(name.replaceAll(".", "/"))}`,
  );
  return [
    `date -u -s @${Math.floor(nowMs / 1000)} >/dev/null`,
    `echo ${quote(hostname)} > /proc/sys/kernel/hostname`,
    file("/run/etc/hosts", hostsFile(spec, [address])),
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

export interface HostKey {
  /** As OpenSSH's known_hosts has it. */
  public: string;
  /** The private key in dropbear's format. */
  dropbear: Buffer;
}

/** The guest's SSH host key, made here: the host need not believe what a guest says, and a guest need not compute it. */
export function makeHostKey(): HostKey {
  const { d, x } = generateKeyPairSync("ed25519").privateKey.export({ format: "jwk" });
  const [secret, point] = [Buffer.from(d!, "base64url"), Buffer.from(x!, "base64url")];
  const field = (...parts: Buffer[]) => {
    const length = Buffer.alloc(4);
    length.writeUInt32BE(parts.reduce((sum, part) => sum + part.length, 0));
    return Buffer.concat([length, ...parts]);
  };
  const type = field(Buffer.from("ssh-ed25519"));
  return {
    public: `ssh-ed25519 ${Buffer.concat([type, field(point)]).toString("base64")}`,
    dropbear: Buffer.concat([type, field(secret, point)]),
  };
}
