/** What `vmlet check` says of NetworkPolicies: the node's pods are machines, on a network that none of them reaches. */
import { isForbidden, isNotFound } from "../kube/errors.ts";
import type { Kube } from "../kube/kube.ts";
import type { Report } from "./report.ts";

const PATH = "/apis/networking.k8s.io/v1/networkpolicies?limit=500";
const NAMED = 5;
const WHO_ELSE =
  "what pods of this node reach and what reaches them, their backend's network decides alone (engine.network), unless an agent on its host enforces them (docs/operate.md has one)";

/** Never a fault: a cluster may have policies for its other nodes. @throws KubeApiError */
export async function checkNetworkPolicies(
  kube: Pick<Kube, "request">,
  report: Report,
  signal: AbortSignal,
): Promise<void> {
  const namespaces = await namespacesWithPolicies(kube, signal);
  if (namespaces === undefined)
    return report.note(`NetworkPolicies, which may not be listed here, are not enforced: ${WHO_ELSE}`);
  if (namespaces.length === 0) return report.note(`a NetworkPolicy would not be enforced: ${WHO_ELSE}`);
  const more = namespaces.length > NAMED ? ` and ${namespaces.length - NAMED} more` : "";
  report.note(
    `the NetworkPolicies of namespaces ${namespaces.slice(0, NAMED).join(", ")}${more} are NOT enforced: ${WHO_ELSE}`,
  );
}

/** Undefined when that may not be asked. */
async function namespacesWithPolicies(kube: Pick<Kube, "request">, signal: AbortSignal): Promise<string[] | undefined> {
  try {
    const { items } = await kube.request<{ items?: { metadata?: { namespace?: string } }[] }>({
      method: "GET",
      path: PATH,
      signal,
    });
    return [...new Set((items ?? []).map(({ metadata }) => metadata?.namespace ?? "default"))].toSorted();
  } catch (thrown) {
    if (isForbidden(thrown)) return undefined;
    // A cluster without that API has none.
    if (isNotFound(thrown)) return [];
    throw thrown;
  }
}
