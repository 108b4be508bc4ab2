/** Contents of a container's /etc/hosts and /etc/resolv.conf, as the kubelet writes them. */
import { hostname } from "node:os";
import type { MachineSpec } from "../../../src/provider/kit/index.ts";

/** @param host contents of the host's own file, for a machine on the host's network */
export function hostsFile(
  spec: Pick<MachineSpec, "hostname" | "domain" | "hosts">,
  addresses: readonly string[],
  host?: string,
): string {
  const { hostname, domain } = spec;
  const names = hostname === undefined ? [] : domain === undefined ? [hostname] : [`${hostname}.${domain}`, hostname];
  const lines = host === undefined ? ownLines(names, addresses) : [HOST_NETWORK_HEADER, host.trimEnd()];
  if (spec.hosts !== undefined && spec.hosts.length > 0) {
    lines.push(
      "",
      "# Entries added by HostAliases.",
      ...spec.hosts.map(({ ip, names: aliases }) => [ip, ...aliases].join("\t")),
    );
  }
  return `${lines.join("\n")}\n`;
}

const HOST_NETWORK_HEADER = "# Kubernetes-managed hosts file (host network).";

function ownLines(names: readonly string[], addresses: readonly string[]): string[] {
  return [
    "# Kubernetes-managed hosts file.",
    "127.0.0.1\tlocalhost",
    "::1\tlocalhost ip6-localhost ip6-loopback",
    "fe00::0\tip6-localnet",
    "fe00::0\tip6-mcastprefix",
    "fe00::1\tip6-allnodes",
    "fe00::2\tip6-allrouters",
    ...(names.length === 0 ? [] : addresses.map((address) => [address, ...names].join("\t"))),
  ];
}

/** Undefined when the machine has no settings of its own: then the host's file serves. */
export function resolvConf(dns: MachineSpec["dns"]): string | undefined {
  if (dns === undefined) return undefined;
  const lines = dns.nameservers.map((server) => `nameserver ${server}`);
  if (dns.searches.length > 0) lines.push(`search ${dns.searches.join(" ")}`);
  if (dns.options.length > 0) lines.push(`options ${dns.options.join(" ")}`);
  return `${lines.join("\n")}\n`;
}

/** What gethostname(2) says inside the machine. */
export function kernelHostname(
  spec: Pick<MachineSpec, "hostname" | "domain" | "hostname_is_fqdn" | "host">,
  machineId: string,
): string {
  if (spec.host?.network === true) return hostname();
  const name = spec.hostname ?? machineId.slice(0, 63);
  return spec.hostname_is_fqdn === true && spec.domain !== undefined ? `${name}.${spec.domain}` : name;
}
