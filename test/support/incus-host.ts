/** A further host of an Incus cluster: a network and mounts of its own, behind a link to this host. */
import { execFileSync } from "node:child_process";
import { existsSync } from "node:fs";
import { mkdir } from "node:fs/promises";
import { join } from "node:path";
import type { ManagedProcess, Sandbox } from "../e2e/harness/processes.ts";
import { must, waitFor } from "../e2e/harness/wait.ts";

export interface TestHost extends AsyncDisposable {
  /** Of this host on the link, and of the other. */
  readonly near: string;
  readonly far: string;
  /** Runs there what the words say. */
  spawn(name: string, words: readonly string[], env: NodeJS.ProcessEnv): ManagedProcess;
}

/** @param number tells hosts of several tests apart */
export async function startHost(sandbox: Sandbox, number: number): Promise<TestHost> {
  const [link, subnet] = [`vmh${number}`, `10.${200 + (number % 50)}.${number % 250}`];
  const [near, far] = [`${subnet}.1`, `${subnet}.2`];
  const sys = join(sandbox.dir, "sys");
  await mkdir(sys);
  // What Incus asks /sys of networks has to be this one's; its control groups are the host's.
  const script = `mount -t sysfs sysfs ${sys} && mount --rbind /sys/fs/cgroup ${sys}/fs/cgroup && mount --rbind ${sys} /sys &&
ip link set lo up && : >${sys}.ready && exec sleep infinity`;
  const words = ["--net", "--mount", "--propagation", "private", "sh", "-c", script];
  const holder = sandbox.spawn("host", "unshare", words);
  await using begun = new AsyncDisposableStack();
  begun.defer(() => holder.kill("SIGKILL"));
  await waitFor({ what: "the host to be there" }, () => must(existsSync(`${sys}.ready`), "not yet"));
  const enter = ["--net", "--mount", "--target", String(holder.pid)];
  const ip = (...all: string[]) => execFileSync("ip", all);
  const there = (...all: string[]) => execFileSync("nsenter", [...enter, ...all]);
  ip("link", "add", link, "type", "veth", "peer", "name", "uplink", "netns", String(holder.pid));
  begun.defer(() => void ip("link", "delete", link));
  ip("address", "add", `${near}/30`, "dev", link);
  ip("link", "set", link, "up");
  there("ip", "address", "add", `${far}/30`, "dev", "uplink");
  there("ip", "link", "set", "uplink", "up");
  there("ip", "route", "add", "default", "via", near);
  const all = begun.move();
  return {
    near,
    far,
    spawn: (name, command, env) => sandbox.spawn(name, "nsenter", [...enter, ...command], { env }),
    [Symbol.asyncDispose]: () => all.disposeAsync(),
  };
}
