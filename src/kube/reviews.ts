/**
 * The questions that a server asks the API server about its callers: who a token belongs to, and what a user may do.
 */
import type { Kube } from "./kube.ts";
import { resourcePath } from "./paths.ts";

export interface UserInfo {
  username: string;
  uid?: string;
  groups?: string[];
  extra?: Record<string, string[]>;
}

/**
 * Who a bearer token belongs to; undefined when the API server does not accept it.
 * @throws KubeApiError when it cannot say
 */
export async function tokenReview(
  kube: Kube,
  review: { token: string; audiences?: readonly string[] },
  signal: AbortSignal,
): Promise<UserInfo | undefined> {
  const reply = await kube.request<{ status?: { authenticated?: boolean; user?: Partial<UserInfo> } }>({
    method: "POST",
    path: resourcePath({ group: "authentication.k8s.io", resource: "tokenreviews" }),
    body: { apiVersion: "authentication.k8s.io/v1", kind: "TokenReview", spec: review },
    signal,
    lane: "review",
  });
  const { authenticated, user } = reply.status ?? {};
  return authenticated && user?.username ? { ...user, username: user.username } : undefined;
}

export interface ResourceAttributes {
  verb: string;
  group?: string;
  version?: string;
  resource: string;
  subresource?: string;
  namespace?: string;
  name?: string;
  fieldSelector?: {
    requirements: { key: string; operator: "In" | "NotIn" | "Exists" | "DoesNotExist"; values?: string[] }[];
  };
}

interface AccessAnswer {
  allowed: boolean;
  reason: string;
}

interface ReviewReply {
  status?: { allowed?: boolean; denied?: boolean; reason?: string; evaluationError?: string };
}

/** May `user` do this? @throws KubeApiError when the API server cannot say */
export async function subjectAccessReview(
  kube: Kube,
  review: { user: UserInfo; attributes: ResourceAttributes } | { user: UserInfo; path: string; verb: string },
  signal: AbortSignal,
): Promise<AccessAnswer> {
  const { user } = review;
  const reply = await kube.request<ReviewReply>({
    method: "POST",
    path: resourcePath({ group: "authorization.k8s.io", resource: "subjectaccessreviews" }),
    body: {
      apiVersion: "authorization.k8s.io/v1",
      kind: "SubjectAccessReview",
      spec: {
        user: user.username,
        uid: user.uid,
        groups: user.groups,
        extra: user.extra,
        ...("attributes" in review
          ? { resourceAttributes: review.attributes }
          : { nonResourceAttributes: { path: review.path, verb: review.verb } }),
      },
    },
    signal,
    lane: "review",
  });
  return answer(reply);
}

/** May we do this? @throws KubeApiError when the API server cannot say */
export async function selfSubjectAccessReview(
  kube: Kube,
  attributes: ResourceAttributes,
  signal: AbortSignal,
): Promise<AccessAnswer> {
  const reply = await kube.request<ReviewReply>({
    method: "POST",
    path: resourcePath({ group: "authorization.k8s.io", resource: "selfsubjectaccessreviews" }),
    body: {
      apiVersion: "authorization.k8s.io/v1",
      kind: "SelfSubjectAccessReview",
      spec: { resourceAttributes: attributes },
    },
    signal,
  });
  return answer(reply);
}

function answer({ status }: ReviewReply): AccessAnswer {
  return {
    allowed: status?.allowed === true && status.denied !== true,
    reason: status?.reason || status?.evaluationError || "",
  };
}
