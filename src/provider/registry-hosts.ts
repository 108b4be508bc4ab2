/** Which registry a key of credentials means (pkg/credentialprovider: keyring.go). */
import { globMatches } from "../util/glob.ts";

/** Keys that are longer name no host that there could be; they are not even looked at. */
export const MAX_REGISTRY_KEY_LENGTH = 512;

/**
 * Whether a registry's host falls under the host of a key: the same port, as many labels, and each label of the host
 * matched by that of the key, where `*` stands for anything within the label (`URLsMatch`). Takes linear time for any
 * key.
 *
 * @param key `host[:port]` that credentials are for; may hold globs
 * @param host `host[:port]` of an image's registry
 */
export function registryHostMatches(key: string, host: string): boolean {
  if (key.length > MAX_REGISTRY_KEY_LENGTH) return false;
  const wanted = splitHost(key);
  const actual = splitHost(host);
  if (wanted.port !== actual.port || wanted.labels.length !== actual.labels.length) return false;
  return wanted.labels.every((label, index) => globMatches(label, actual.labels[index]!));
}

function splitHost(authority: string): { labels: string[]; port: string } {
  const colon = authority.lastIndexOf(":");
  // The colons of an IPv6 address are in brackets.
  const hasPort = colon > authority.lastIndexOf("]");
  const host = hasPort ? authority.slice(0, colon) : authority;
  const bare = host.startsWith("[") && host.endsWith("]") ? host.slice(1, -1) : host;
  return { labels: bare.split("."), port: hasPort ? authority.slice(colon + 1) : "" };
}
