/** What the host itself asks of DNS. */
import { readFileSync } from "node:fs";
import type { Clock } from "./clock.ts";

interface HostResolvConf {
  readonly nameservers: readonly string[];
  readonly searches: readonly string[];
  readonly options: readonly string[];
}

/** A burst of pods need not read it a thousand times. */
const FRESH_MS = 1_000;

/**
 * The host's own resolv.conf, which `dnsPolicy: Default` gives to pods; empty where there is none.
 *
 * @returns reads the file again when what it knows is older than a second
 */
export function hostResolvConf(clock: Clock, path = "/etc/resolv.conf"): () => HostResolvConf {
  let last: { at: number; conf: HostResolvConf } | undefined;
  return () => {
    const now = clock.monotonic();
    if (last === undefined || now - last.at > FRESH_MS) last = { at: now, conf: read(path) };
    return last.conf;
  };
}

function read(path: string): HostResolvConf {
  const result = { nameservers: [] as string[], searches: [] as string[], options: [] as string[] };
  let text: string;
  try {
    text = readFileSync(path, "utf8");
  } catch {
    return result;
  }
  for (const line of text.split("\n")) {
    const [keyword, ...values] = line.trim().split(/\s+/);
    if (keyword === "nameserver") result.nameservers.push(...values.slice(0, 1));
    else if (keyword === "search" || keyword === "domain") result.searches = values;
    else if (keyword === "options") result.options.push(...values);
  }
  return result;
}
