/** A pod's hostname and domain (kubelet_pods.go `GeneratePodHostNameAndDomain`, util.go `GetNodenameForKernel`). */
import type { Pod } from "../../kube/wire.ts";
import { trimEnd } from "../../util/text.ts";

const MAX_HOSTNAME = 63;
const MAX_FQDN = 64;

type Hostname =
  | { ok: true; hostname: string; domain: string | undefined; asFqdn: boolean }
  /** The sandbox cannot be created; the pod stays Pending. */
  | { ok: false; message: string };

/** The short hostname, the domain when `subdomain` is set, and whether the kernel's hostname is to be both. */
export function podHostname(pod: Pod, clusterDomain: string): Hostname {
  const spec = pod.spec;
  const podName = pod.metadata?.name ?? "";
  if (spec?.hostnameOverride !== undefined && spec.hostnameOverride !== "") {
    return { ok: true, hostname: truncate(spec.hostnameOverride), domain: undefined, asFqdn: false };
  }
  const hostname = truncate(spec?.hostname ? spec.hostname : podName);
  if (!spec?.subdomain) return { ok: true, hostname, domain: undefined, asFqdn: false };
  const domain = `${spec.subdomain}.${pod.metadata?.namespace ?? ""}.svc.${clusterDomain}`;
  const asFqdn = spec.setHostnameAsFQDN ?? false;
  const fqdn = `${hostname}.${domain}`;
  if (asFqdn && fqdn.length > MAX_FQDN) {
    return {
      ok: false,
      message: `failed to construct FQDN from pod hostname and cluster domain, FQDN ${fqdn} is too long (${MAX_FQDN} characters is the max, ${fqdn.length} characters requested)`,
    };
  }
  return { ok: true, hostname, domain, asFqdn };
}

function truncate(hostname: string): string {
  return hostname.length <= MAX_HOSTNAME ? hostname : trimEnd(hostname.slice(0, MAX_HOSTNAME), "-.");
}
