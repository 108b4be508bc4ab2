import type { Kube } from "./kube.ts";
import { resourcePath } from "./paths.ts";

export interface TokenRequest {
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
}

/** TokenRequest of authentication.k8s.io/v1. @throws KubeApiError */
export async function requestToken(kube: Kube, request: TokenRequest, signal: AbortSignal): Promise<IssuedToken> {
  const { namespace, serviceAccount, audiences, expirationSeconds, pod } = request;
  const reply = await kube.request<{ status: IssuedToken }>({
    method: "POST",
    path: `${resourcePath({ resource: "serviceaccounts", namespace, name: serviceAccount })}/token`,
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
  return reply.status;
}
