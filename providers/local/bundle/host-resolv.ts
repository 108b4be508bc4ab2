/** This host's name servers, for machines that are told none: a machine does not reach those on loopback. */
import { isIP } from "node:net";
import type { HostProblem } from "../engine.ts";
import { readFileIfExists } from "../host/files.ts";

const USUAL = "/etc/resolv.conf";
/** Where systemd-resolved writes the name servers that it asks itself, as a kubelet's resolvConf has it. */
const BEHIND_RESOLVED = "/run/systemd/resolve/resolv.conf";

/** @returns the text of a resolv.conf; "" where the host has none */
export async function hostResolvConf(read = readFileIfExists): Promise<string> {
  const usual = (await read(USUAL)) ?? "";
  if (!isOfHostAlone(usual)) return usual;
  const behind = await read(BEHIND_RESOLVED);
  return behind === undefined || isOfHostAlone(behind) ? usual : behind;
}

/** What is wrong with them. */
export async function checkResolvConf(read = readFileIfExists): Promise<HostProblem[]> {
  if (!isOfHostAlone(await hostResolvConf(read))) return [];
  return [
    {
      fatal: false,
      problem: `${USUAL} has name servers on loopback alone (127.0.0.53 is systemd-resolved's): machines that are told none of their own cannot reach them`,
      cure: `give ${USUAL} servers that machines reach, or have systemd-resolved write ${BEHIND_RESOLVED}; pods with dnsPolicy ClusterFirst have the cluster's`,
    },
  ];
}

function isOfHostAlone(text: string): boolean {
  const words = text.split("\n").map((line) =>
    line
      .trim()
      .split(/\s/)
      .filter((word) => word !== ""),
  );
  const servers = words.flatMap(([keyword, server = ""]) => (keyword === "nameserver" ? server.split("%")[0]! : []));
  return servers.length > 0 && servers.every((server) => isIP(server) !== 0 && /^(127\.|::1$)/.test(server));
}
