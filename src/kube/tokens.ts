/** Asks the API server for a service account's token. */
import { KubeApiError } from "./errors.ts";
import type { Kube } from "./kube.ts";
import { resourcePath } from "./paths.ts";

interface TokenRequest {
  namespace: string;
  serviceAccount: string;
  /** Empty: the API server's own. */
  audiences: readonly string[];
  /** The server's least is 600. */
  expirationSeconds: number;
  /** The token dies with this pod. The Node authorizer grants nothing without it. */
  pod: { name: string; uid: string };
}

export interface IssuedToken {
  token: string;
  /** RFC 3339. The server may have shortened or extended what was asked for. */
  expirationTimestamp: string;
  /** RFC 3339: when it was issued, by the same clock as `expirationTimestamp`; not every server says so. */
  creationTimestamp?: string;
}

/** TokenRequest of authentication.k8s.io/v1. @throws KubeApiError, `Malformed` when the reply holds no token */
export async function requestToken(kube: Kube, request: TokenRequest, signal: AbortSignal): Promise<IssuedToken> {
  const { namespace, serviceAccount, audiences, expirationSeconds, pod } = request;
  const path = `${resourcePath({ resource: "serviceaccounts", namespace, name: serviceAccount })}/token`;
  const reply = await kube.request<{
    metadata?: { creationTimestamp?: string | null };
    status?: { token?: unknown; expirationTimestamp?: unknown };
  }>({
    method: "POST",
    path,
    body: {
      apiVersion: "authentication.k8s.io/v1",
      kind: "TokenRequest",
      spec: {
        audiences,
        expirationSeconds,
        boundObjectRef: { apiVersion: "v1", kind: "Pod", name: pod.name, uid: pod.uid },
      },
    },
    signal,
  });
  const { token, expirationTimestamp } = reply.status ?? {};
  if (typeof token !== "string" || token === "" || typeof expirationTimestamp !== "string") {
    throw new KubeApiError(`POST ${path}: the reply holds no token`, { status: 0, reason: "Malformed" });
  }
  const { creationTimestamp } = reply.metadata ?? {};
  return { token, expirationTimestamp, ...(typeof creationTimestamp === "string" && { creationTimestamp }) };
}
