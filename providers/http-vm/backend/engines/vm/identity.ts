/** What makes a booted guest this machine: one shell script, sent to it as one line over its virtio port. */
import { randomBytes } from "node:crypto";
import { connect } from "node:net";
import type { MachineSpec } from "../../../../../src/provider/machine.ts";
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
  nowMs: number;
  hostResolvConf: string;
  /** Arguments of `vmlet` commands that make the machine's disk and volumes. */
  prepare: readonly (readonly string[])[];
}

export function identityScript(identity: Identity): string {
  const { attachment, spec } = identity;
  const file = (path: string, content: string | Buffer) =>
    `echo ${Buffer.from(content).toString("base64")} | base64 -d > ${path}`;
  const hostname = kernelHostname(spec, identity.machineId);
  const sysctls = (spec.security?.sysctls ?? []).map(
    ({ name, value }) => `echo ${quote(value)} > /proc/sys/${quote(name.replaceAll(".", "/"))}`,
  );
  return [
    `date -u -s @${Math.floor(identity.nowMs / 1000)} >/dev/null`,
    file("/run/seed", randomBytes(SEED_BYTES)),
    "cat /run/seed > /dev/urandom",
    "rm /run/seed",
    file("/run/reseed", tinyProgram(RESEED)),
    "chmod 700 /run/reseed",
    "/run/reseed < /dev/urandom",
    "insmod /modules/virtio-rng.ko",
    `hostname ${quote(hostname)}`,
    "mkdir -p /run/etc /run/shm /images",
    "mount -t tmpfs -o mode=1777,size=67108864 tmpfs /run/shm",
    file("/run/etc/hosts", hostsFile(spec, [attachment.address])),
    file("/run/etc/hostname", `${hostname}\n`),
    file("/run/etc/resolv.conf", resolvConf(spec.dns) ?? identity.hostResolvConf),
    `ip link set eth0 address ${attachment.mac}`,
    `ip address add ${attachment.address}/${attachment.prefix} dev eth0`,
    "ip link set eth0 up",
    `ip route add default via ${attachment.gateway}`,
    "echo 0 > /proc/sys/net/ipv4/ip_unprivileged_port_start",
    "echo '0 2147483647' > /proc/sys/net/ipv4/ping_group_range",
    ...sysctls,
    file("/root/.ssh/authorized_keys", `${identity.authorizedKey}\n`),
    "chmod 600 /root/.ssh/authorized_keys",
    ...identity.prepare.map((args) => `vmlet ${args.map(quote).join(" ")} || exit 1`),
    'key=$(dropbearkey -t ed25519 -f /run/hostkey 2>/dev/null | grep "^ssh-ed25519")',
    `dropbear -r /run/hostkey -p ${SSH_PORT} -s -P /run/dropbear.pid`,
    'echo "DONE $key" >&3',
  ].join("\n");
}

/**
 * Waits until the guest reads its port, gives it the script, and returns the guest's public key.
 * @throws Error when the guest does not answer before the signal aborts, or answers nonsense
 */
export async function giveIdentity(
  socketPath: string,
  script: string,
  signal: AbortSignal,
  options: { booted: boolean },
): Promise<string> {
  return await new Promise((resolve, reject) => {
    const socket = connect(socketPath);
    let received = "";
    const finish = (error: Error | undefined, key?: string) => {
      signal.removeEventListener("abort", abort);
      socket.destroy();
      if (error === undefined) resolve(key!);
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
      const answer = /^DONE(.*)$/m.exec(received);
      if (answer === null || !received.includes("\n", answer.index)) return;
      const key = /^ (ssh-ed25519 [A-Za-z0-9+/=]{40,100})(?: |\r?$)/.exec(answer[1]!);
      if (key === null) finish(new Error("the guest has no host key"));
      else finish(undefined, key[1]!);
    });
  });
}
