/**
 * Two hosts with a backend's network each, as network namespaces with a link between them: neither sees this host's
 * interfaces, rules or routes, and the kernel takes all of it away when their programs end.
 */
import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { createInterface } from "node:readline";
import { join } from "node:path";
import { run } from "../../providers/local/host/command.ts";
import type { Attachment, NetworkOptions } from "../../providers/local/network/network.ts";

export interface NetworkHost {
  /** Of the host on the link to the other. */
  readonly address: string;
  readonly machine: Attachment;
  /** Runs a command on the host, or in its machine. */
  run(...command: string[]): Promise<string>;
  inMachine(...command: string[]): Promise<string>;
}

interface Wanted {
  readonly address: string;
  /** With the range that its Node's agent has told, where `cidr` is the Node's. */
  readonly network: NetworkOptions & { told?: string };
}

const PROGRAM = join(import.meta.dirname, "network-host-program.ts");
/** /run has the bridge's lock and the names of namespaces, which are a host's own. */
const BEGIN = `mount -t sysfs sysfs /sys && mount -t tmpfs tmpfs /run && ip link set lo up && exec "$0" "$@"`;
const WITHIN_MS = 30_000;

/** Linked to each other, with no route but to each other's addresses on the link. */
export async function startNetworkHosts(
  wanted: readonly [Wanted, Wanted],
): Promise<{ hosts: [NetworkHost, NetworkHost] } & AsyncDisposable> {
  await using begun = new AsyncDisposableStack();
  const [a, b] = [await start(wanted[0], begun), await start(wanted[1], begun)];
  const link = ["type", "veth", "peer", "name", "uplink", "netns", String(b.pid)];
  await run("ip", ["link", "add", "uplink", "netns", String(a.pid), ...link]);
  for (const { host } of [a, b]) {
    await host.run("ip", "address", "add", `${host.address}/24`, "dev", "uplink");
    await host.run("ip", "link", "set", "uplink", "up");
  }
  const all = begun.move();
  return { hosts: [a.host, b.host], [Symbol.asyncDispose]: () => all.disposeAsync() };
}

async function start({ address, network }: Wanted, begun: AsyncDisposableStack) {
  const words = ["--net", "--mount", "--propagation", "private", "sh", "-c", BEGIN];
  const child = spawn("unshare", [...words, process.execPath, PROGRAM, JSON.stringify(network)], {
    stdio: ["pipe", "pipe", "inherit"],
  });
  begun.defer(() => end(child));
  const [line] = (await Promise.race([
    once(createInterface({ input: child.stdout }), "line"),
    once(child, "exit").then(() => {
      throw new Error("the host's program has ended");
    }),
  ])) as [string];
  const pid = child.pid!;
  const machine = JSON.parse(line) as Attachment;
  const enter = async (...command: string[]) => {
    const all = ["--net", "--mount", "--target", String(pid), ...command];
    return (await run("nsenter", all, { withinMs: WITHIN_MS })).stdout.toString();
  };
  const inMachine = (...command: string[]) => enter("nsenter", `--net=${machine.netns}`, ...command);
  const host: NetworkHost = { address, machine, run: enter, inMachine };
  return { pid, host };
}

async function end(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return;
  const ended = once(child, "exit");
  child.stdin!.end();
  await ended;
}
