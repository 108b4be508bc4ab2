/** What makes a booted guest this machine: one shell script, sent to it as one line over its virtio port. */
import { generateKeyPairSync, randomBytes } from "node:crypto";
import { connect } from "node:net";
import type { MachineSpec } from "../../../../../src/provider/kit/index.ts";
import { tinyProgram } from "../oci/pause.ts";
import { hostsFile, kernelHostname, resolvConf } from "../oci/host-files.ts";
import type { Attachment } from "../../network/network.ts";
import { quote, SSH_PORT } from "./ssh.ts";

/** ioctl(0, RNDRESEEDCRNG); exit(): writing to /dev/urandom alone leaves the generators of two clones alike. */
const RESEED = Buffer.from("31ffbe07520000b8100000000f0531ffb83c0000000f05", "hex");
const SEED_BYTES = 64;
const MAX_ANSWER_BYTES = 64 * 1024;

export interface Identity {
  machineId: string;
  spec: MachineSpec;
  attachment: Attachment;
  /** Public key of the backend. */
  authorizedKey: string;
  hostKey: HostKey;
  nowMs: number;
  hostResolvConf: string;
  /** Arguments of `vmlet` commands that make the machine's disk and volumes. */
  prepare: readonly (readonly string[])[];
}

export function identityScript(identity: Identity): string {
  const { attachment, spec } = identity;
  const hostname = kernelHostname(spec, identity.machineId);
  const sysctls = (spec.security?.sysctls ?? []).map(
    ({ name, value }) => `echo ${quote(value)} > /proc/sys/${quote(name.replaceAll(".", "/"))}`,
  );
  return [
    "umask 077",
    file("/run/seed", randomBytes(SEED_BYTES)),
    "cat /run/seed > /dev/urandom",
    file("/run/reseed", tinyProgram(RESEED)),
    "chmod 700 /run/reseed",
    "/run/reseed < /dev/urandom",
    "rm /run/seed",
    file("/run/hostkey", identity.hostKey.dropbear),
    file("/root/.ssh/authorized_keys", `${identity.authorizedKey}\n`),
    "umask 022",
    `date -u -s @${Math.floor(identity.nowMs / 1000)} >/dev/null`,
    "insmod /modules/virtio-rng.ko",
    `hostname ${quote(hostname)}`,
    `ip link set eth0 address ${attachment.mac}`,
    `ip address add ${attachment.address}/${attachment.prefix} dev eth0`,
    "ip link set eth0 up",
    `ip route add default via ${attachment.gateway}`,
    `dropbear -r /run/hostkey -p ${SSH_PORT} -s -P /run/dropbear.pid`,
    "mkdir -p /run/etc /run/shm /images",
    "mount -t tmpfs -o mode=1777,size=67108864 tmpfs /run/shm",
    file("/run/etc/hosts", hostsFile(spec, [attachment.address])),
    file("/run/etc/hostname", `${hostname}\n`),
    file("/run/etc/resolv.conf", resolvConf(spec.dns) ?? identity.hostResolvConf),
    "echo 0 > /proc/sys/net/ipv4/ip_unprivileged_port_start",
    "echo '0 2147483647' > /proc/sys/net/ipv4/ping_group_range",
    ...sysctls,
    ...identity.prepare.map((args) => `vmlet ${args.map(quote).join(" ")} || exit 1`),
    "echo DONE >&3",
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

/**
 * Waits until the guest reads its port, gives it the script, and waits until the guest has run it.
 * @throws Error when the guest does not answer before the signal aborts, or answers nonsense
 */
export async function giveIdentity(
  socketPath: string,
  script: string,
  signal: AbortSignal,
  options: { booted: boolean },
): Promise<void> {
  await new Promise<void>((resolve, reject) => {
    const socket = connect(socketPath);
    let received = "";
    const finish = (error?: Error) => {
      signal.removeEventListener("abort", abort);
      socket.destroy();
      if (error === undefined) resolve();
      else reject(error);
    };
    const abort = () => finish(signal.reason as Error);
    if (signal.aborted) return abort();
    signal.addEventListener("abort", abort, { once: true });
    socket.once("error", finish);
    socket.once("close", () => finish(new Error("the VM ended before it was ready")));
    const line = `${Buffer.from(script).toString("base64")}\n`;
    let sent = options.booted;
    if (sent) socket.write(line);
    socket.setEncoding("latin1").on("data", (text: string) => {
      received += text;
      if (received.length > MAX_ANSWER_BYTES) return finish(new Error("the guest sent more than an answer"));
      if (!sent && received.includes("READY")) {
        sent = true;
        socket.write(line);
      }
      if (/^DONE\r?\n/m.test(received)) finish();
    });
  });
}
