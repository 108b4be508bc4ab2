/** Network interfaces of this host, by `ip`. */
import { existsSync } from "node:fs";
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
