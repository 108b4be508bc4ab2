/** Kubernetes' rules for names (apimachinery: pkg/util/validation). */

/** The characters of a DNS-1123 subdomain; its length is not checked. */
export const DNS_1123 = /^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$/;
const NAME = /^[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$/;

/**
 * A key of labels, annotations and taints, or a resource: at most 63 characters, after a DNS prefix and '/' if need be.
 */
export function isQualifiedName(text: string): boolean {
  const [name, prefix, ...rest] = text.split("/").toReversed();
  const isPrefixed = prefix === undefined || (prefix.length <= 253 && DNS_1123.test(prefix));
  return NAME.test(name!) && isPrefixed && rest.length === 0;
}

export const isLabelValue = (text: string): boolean => text === "" || NAME.test(text);
