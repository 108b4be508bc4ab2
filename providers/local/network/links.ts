/** Network interfaces of this host, by `ip`. */
import { existsSync } from "node:fs";
import { readFile } from "node:fs/promises";
import { isMissing } from "../host/files.ts";
import { runSoon } from "./tools.ts";

export async function ip(commands: readonly string[]): Promise<void> {
  await runSoon("ip", ["-batch", "-"], { input: `${commands.join("\n")}\n` });
}

export function isLink(name: string): boolean {
  return existsSync(`/sys/class/net/${name}`);
}

/**
 * Gives another's interface its name with us, which says whose it is to those who find it later; unless it has that
 * name. It is also kept what the machine may send as: the plugin's address of the interface is in no file.
 */
export async function nameLink(made: { link: string; mac: string }, name: string): Promise<void> {
  if (!isLink(made.link)) return await ip([`link set ${name} up`]);
  await ip([
    `link set ${made.link} down alias ${made.mac}`,
    `link set ${made.link} name ${name}`,
    `link set ${name} up`,
  ]);
}

/**
 * Has a link on the bridge. What a machine sends to itself by another address (a Service's, or its VM's) goes back
 * where it came from (kubelet: hairpin mode): a bridge whose packets the host's rules see (br_netfilter) does so only
 * if told.
 * @returns lines for `ip -batch`
 */
export function joining(bridge: string, link: string): string[] {
  return [`link set ${link} master ${bridge} up`, `link set ${link} type bridge_slave hairpin on`];
}

/** Traffic of a machine, as the machine sees it; undefined where its link is gone. */
export async function linkCounters(link: string): Promise<{ rx_bytes: number; tx_bytes: number } | undefined> {
  const read = async (name: string) => Number(await readFile(`/sys/class/net/${link}/statistics/${name}`, "utf8"));
  try {
    return { rx_bytes: await read("tx_bytes"), tx_bytes: await read("rx_bytes") };
  } catch (thrown) {
    if (isMissing(thrown)) return undefined;
    throw thrown;
  }
}
