/** An NFS server (nfs-ganesha) in a network namespace of its own, which machines reach through this host. */
import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { chmodSync, mkdirSync, mkdtempSync, readlinkSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { randomBytes } from "node:crypto";
import { findTool, run } from "../../providers/local/host/command.ts";
import { NotYet, waitFor } from "../e2e/harness/wait.ts";

export interface NfsServer {
  readonly address: string;
  /** What it exports as /share, on this host. */
  readonly folder: string;
  /** It says nothing any more, and ends no connection. */
  silence(): void;
  stop(): Promise<void>;
}

export const missingForNfs = (): string | undefined =>
  findTool("ganesha.nfsd") === undefined ? "ganesha.nfsd (nfs-ganesha, nfs-ganesha-vfs)" : undefined;

export async function startNfsServer(): Promise<NfsServer> {
  const dir = mkdtempSync(join(tmpdir(), "vmlet-nfs-"));
  const folder = join(dir, "share");
  for (const each of [folder, join(dir, "recovery")]) mkdirSync(each);
  chmodSync(folder, 0o777);
  const config = join(dir, "ganesha.conf");
  writeFileSync(config, configOf(folder, join(dir, "recovery")));
  const program = ["ganesha.nfsd", "-F", "-f", config, "-L", join(dir, "log"), "-p", join(dir, "pid")];
  const child = spawn("unshare", ["--net", ...program], { stdio: "ignore" });
  const net = randomBytes(1)[0]!;
  const [gateway, address] = [`198.18.${net}.1`, `198.18.${net}.2`];
  const link = `vn${randomBytes(3).toString("hex")}`;
  const inside = (...command: string[]) => run("nsenter", [`--net=/proc/${child.pid}/ns/net`, ...command]);
  const stop = async () => {
    await end(child);
    rmSync(dir, { recursive: true, force: true });
  };
  try {
    await waitFor({ what: "the NFS server to begin" }, () => {
      if (readlinkSync(`/proc/${child.pid}/ns/net`) === readlinkSync("/proc/self/ns/net")) throw new NotYet();
    });
    await run("ip", ["link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", String(child.pid)]);
    await run("ip", ["address", "add", `${gateway}/30`, "dev", link]);
    await run("ip", ["link", "set", link, "up"]);
    for (const words of [
      ["address", "add", `${address}/30`, "dev", "eth0"],
      ["link", "set", "lo", "up"],
      ["link", "set", "eth0", "up"],
    ])
      await inside("ip", ...words);
    await waitFor({ what: "the NFS server to listen" }, async () => {
      const { stdout } = await inside("ss", "-Hltn", "sport", "=", ":2049");
      if (stdout.length === 0) throw new Error("it does not");
    });
  } catch (thrown) {
    await stop();
    throw thrown;
  }
  return { address, folder, silence: () => void child.kill("SIGSTOP"), stop };
}

const configOf = (folder: string, recovery: string) => `
NFS_CORE_PARAM { Protocols = 4; Enable_NLM = false; Enable_RQUOTA = false; allow_set_io_flusher_fail = true; }
NFSv4 { Graceless = true; RecoveryBackend = fs; RecoveryRoot = ${recovery}; Minor_Versions = 0, 1, 2; }
EXPORT {
  Export_Id = 1; Path = ${folder}; Pseudo = /share; Access_Type = RW; Squash = No_Root_Squash; SecType = sys; Protocols = 4;
  FSAL { Name = VFS; }
}
`;

async function end(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return;
  const over = once(child, "exit");
  child.kill("SIGKILL");
  await over;
}
