import { readFileSync } from "node:fs";

/** The host's own resolv.conf, which `dnsPolicy: Default` gives to pods; empty where there is none. */
export function hostResolvConf(path = "/etc/resolv.conf"): {
  nameservers: string[];
  searches: string[];
  options: string[];
} {
  const result: { nameservers: string[]; searches: string[]; options: string[] } = {
    nameservers: [],
    searches: [],
    options: [],
  };
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
