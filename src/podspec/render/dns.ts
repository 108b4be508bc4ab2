/** A pod's resolv.conf (pkg/kubelet/network/dns): policy, then `dnsConfig` merged in, then the limits of resolvers. */
import { formatPod } from "../../kube/pod.ts";
import type { Pod } from "../../kube/wire.ts";
import type { DnsSettings, PodEvent } from "../types.ts";

const MAX_NAMESERVERS = 3;
const MAX_SEARCHES = 32;
const MAX_SEARCH_LENGTH = 255;
const MAX_SEARCH_LINE = 2048;

interface ResolvConf {
  nameservers: string[];
  searches: string[];
  options: string[];
}

/** What the machine's resolv.conf is to hold. Adds the kubelet's warnings to `events`. */
export function podDns(pod: Pod, settings: DnsSettings, events: PodEvent[]): ResolvConf {
  const namespace = pod.metadata?.namespace ?? "";
  const { host } = settings;
  let conf: ResolvConf = {
    nameservers: [...host.nameservers],
    searches: [...host.searches],
    options: [...host.options],
  };
  const policy = pod.spec?.dnsPolicy ?? "ClusterFirst";
  if (policy === "None") {
    conf = { nameservers: [], searches: [], options: [] };
  } else if (policy !== "Default" && !(policy === "ClusterFirst" && pod.spec?.hostNetwork)) {
    if (settings.clusterDns.length > 0) {
      const domain = settings.clusterDomain;
      const clusterSearches = domain === "" ? [] : [`${namespace}.svc.${domain}`, `svc.${domain}`, domain];
      conf = {
        nameservers: [...settings.clusterDns],
        searches: unique([...clusterSearches, ...host.searches]),
        options: ["ndots:5"],
      };
    } else {
      events.push({
        type: "Warning",
        reason: "MissingClusterDNS",
        message: `pod: "${formatPod(pod)}". kubelet does not have ClusterDNS IP configured and cannot create Pod using "ClusterFirst" policy. Falling back to "Default" policy.`,
      });
    }
  }
  const own = pod.spec?.dnsConfig;
  if (own !== undefined && own !== null) {
    conf = {
      nameservers: unique([...conf.nameservers, ...(own.nameservers ?? [])]),
      searches: unique([...conf.searches, ...(own.searches ?? [])]),
      options: mergeOptions(conf.options, own.options ?? []),
    };
  }
  return applyLimits(conf, events);
}

function mergeOptions(
  base: readonly string[],
  own: readonly { readonly name?: string; readonly value?: string }[],
): string[] {
  const options = new Map<string, string>();
  for (const option of base) {
    const colon = option.indexOf(":");
    if (colon === -1) options.set(option, "");
    else options.set(option.slice(0, colon), option.slice(colon + 1));
  }
  for (const option of own) options.set(option.name ?? "", option.value ?? "");
  return [...options].map(([name, value]) => (value === "" ? name : `${name}:${value}`));
}

function applyLimits(conf: ResolvConf, events: PodEvent[]): ResolvConf {
  let nameservers = conf.nameservers;
  if (nameservers.length > MAX_NAMESERVERS) {
    nameservers = nameservers.slice(0, MAX_NAMESERVERS);
    events.push({
      type: "Warning",
      reason: "DNSConfigForming",
      message: `Nameserver limits were exceeded, some nameservers have been omitted, the applied nameserver line is: ${nameservers.join(" ")}`,
    });
  }
  const searches = conf.searches.slice(0, MAX_SEARCHES).filter((search) => search.length <= MAX_SEARCH_LENGTH);
  while (searches.join(" ").length > MAX_SEARCH_LINE) searches.pop();
  if (searches.length < conf.searches.length) {
    events.push({
      type: "Warning",
      reason: "DNSConfigForming",
      message: `Search Line limits were exceeded, some search paths have been omitted, the applied search line is: ${searches.join(" ")}`,
    });
  }
  return { nameservers, searches, options: conf.options };
}

function unique(items: readonly string[]): string[] {
  return [...new Set(items)];
}
