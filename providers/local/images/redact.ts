/**
 * What registries say, fit for a pod's events: without the query of any URL, which signs for a blob or names a token
 * (containerd: pkg/cri/util/sanitize), and without the user in front of a host.
 */
export function redact(text: string): string {
  return text.replace(/\?[^\s"'<>\\]+/g, "?REDACTED").replace(/\/\/[^\s"'<>\\/@]+@/g, "//");
}
