/** The kinds that are questions, not objects: they are created, answered and never stored. */
import { rfc3339 } from "../../util/clock.ts";
import { attributesOfReview, type Auth } from "./auth.ts";
import { apiVersionOf } from "../kinds/kind.ts";
import { kinds } from "../kinds/kinds.ts";
import type { Json, StoredObject } from "../objects/object.ts";
import type { User } from "../kinds/object-api.ts";
import { badRequest, invalid, invalidValue, notFound, conflict } from "../objects/errors.ts";

interface ReviewKind {
  group: string;
  version: string;
  resource: string;
  kind: string;
  namespaced: boolean;
}

export const reviewKinds: readonly ReviewKind[] = [
  {
    group: "authentication.k8s.io",
    version: "v1",
    resource: "selfsubjectreviews",
    kind: "SelfSubjectReview",
    namespaced: false,
  },
  { group: "authentication.k8s.io", version: "v1", resource: "tokenreviews", kind: "TokenReview", namespaced: false },
  {
    group: "authorization.k8s.io",
    version: "v1",
    resource: "localsubjectaccessreviews",
    kind: "LocalSubjectAccessReview",
    namespaced: true,
  },
  {
    group: "authorization.k8s.io",
    version: "v1",
    resource: "selfsubjectaccessreviews",
    kind: "SelfSubjectAccessReview",
    namespaced: false,
  },
  {
    group: "authorization.k8s.io",
    version: "v1",
    resource: "selfsubjectrulesreviews",
    kind: "SelfSubjectRulesReview",
    namespaced: false,
  },
  {
    group: "authorization.k8s.io",
    version: "v1",
    resource: "subjectaccessreviews",
    kind: "SubjectAccessReview",
    namespaced: false,
  },
];

/** What a client may send beside the stored kinds and the reviews: `apiVersion/kind` -> client-node's model. */
const otherModels: Record<string, string> = {
  "v1/Binding": "V1Binding",
  "policy/v1/Eviction": "V1Eviction",
  "authentication.k8s.io/v1/TokenRequest": "AuthenticationV1TokenRequest",
};

/** client-node's model of a kind that may come in a request, or undefined. */
export function requestModel(apiVersion: string, kind: string): string | undefined {
  const stored = kinds.find((k) => k.kind === kind && apiVersionOf(k) === apiVersion);
  if (stored) return stored.model;
  const review = reviewKinds.find((r) => r.kind === kind && `${r.group}/${r.version}` === apiVersion);
  // DeleteOptions come in the group of whatever they delete.
  return review ? `V1${kind}` : kind === "DeleteOptions" ? "V1DeleteOptions" : otherModels[`${apiVersion}/${kind}`];
}

/** Answers a review. `body` is what the client sent; the answer is it with `status`. */
export function answerReview(kind: ReviewKind, body: Json, user: User, auth: Auth): Json {
  const answer = {
    kind: kind.kind,
    apiVersion: `${kind.group}/${kind.version}`,
    metadata: {},
    ...(body?.spec && { spec: body.spec }),
  };
  switch (kind.kind) {
    case "TokenReview":
      return { ...answer, status: tokenStatus(body?.spec, auth) };
    case "SelfSubjectReview":
      return { ...answer, status: { userInfo: userInfo(user) } };
    case "SelfSubjectAccessReview":
      return { ...answer, status: decision(auth.authorize(user, attributesOfReview(body?.spec))) };
    case "SelfSubjectRulesReview":
      return { ...answer, status: rulesStatus(user, auth) };
    default:
      return { ...answer, status: accessStatus(kind, body?.spec ?? {}, auth) };
  }
}

function tokenStatus(spec: Json, auth: Auth): Json {
  if (!spec?.token) throw badRequest("token is required for TokenReview in authentication");
  const found = auth.review(spec.token as string, (spec.audiences as string[] | undefined) ?? []);
  if (!found) return { user: {}, error: "invalid bearer token" };
  return { authenticated: true, user: userInfo(found.user), audiences: found.audiences };
}

function rulesStatus(user: User, auth: Auth): Json {
  const all = auth.authorize(user, { verb: "*", path: "", group: "*", resource: "*" });
  return {
    resourceRules: all ? [{ verbs: ["*"], apiGroups: ["*"], resources: ["*"] }] : [],
    nonResourceRules: all ? [{ verbs: ["*"], nonResourceURLs: ["*"] }] : [],
    incomplete: false,
  };
}

/** Of SubjectAccessReview and LocalSubjectAccessReview, which ask for somebody else. */
function accessStatus({ group, kind }: ReviewKind, spec: Json, auth: Auth): Json {
  if (!spec.user && !spec.groups?.length) {
    throw invalid({ group, kind }, "", [
      invalidValue("spec.user", spec.user ?? "", "at least one of user or group must be specified"),
    ]);
  }
  const asked: User = { username: spec.user ?? "", groups: spec.groups ?? [] };
  return decision(auth.authorize(asked, attributesOfReview(spec)));
}

const decision = (allowed: boolean): Json => ({
  allowed,
  ...(!allowed && { reason: "devcluster allows only administrators and nodes" }),
});

const userInfo = (user: User): Json => ({
  username: user.username,
  ...(user.uid && { uid: user.uid }),
  groups: user.groups,
  ...(user.extra && { extra: user.extra }),
});

/**
 * `POST serviceaccounts/NAME/token`.
 * @throws ApiStatusError 404 or 409 when the bound object is missing or another one
 */
export function requestToken(
  account: StoredObject,
  body: Json,
  auth: Auth,
  find: (resource: string, key: string) => StoredObject | undefined,
): Json {
  const spec = body?.spec ?? {};
  if (spec.expirationSeconds !== undefined && spec.expirationSeconds < 600) {
    throw invalid({ group: "authentication.k8s.io", kind: "TokenRequest" }, "", [
      invalidValue("spec.expirationSeconds", spec.expirationSeconds, "may not specify a duration less than 10 minutes"),
    ]);
  }
  const bound = spec.boundObjectRef as { kind?: string; name?: string; uid?: string; apiVersion?: string } | undefined;
  if (bound) {
    const resources: Record<string, { resource: string; namespaced: boolean }> = {
      Pod: { resource: "pods", namespaced: true },
      Secret: { resource: "secrets", namespaced: true },
      Node: { resource: "nodes", namespaced: false },
    };
    const target = resources[bound.kind ?? ""];
    if (!target) throw badRequest(`cannot bind token to object of type ${bound.kind}`);
    const found = find(
      `/${target.resource}`,
      target.namespaced ? `${account.metadata.namespace}/${bound.name}` : (bound.name ?? ""),
    );
    if (!found) throw notFound({ group: "", resource: target.resource, kind: bound.kind! }, bound.name ?? "");
    if (bound.uid && bound.uid !== found.metadata.uid) {
      throw conflict(
        { group: "", resource: target.resource },
        bound.name!,
        `the UID in the bound object reference (${bound.uid}) does not match the UID in record. The object might have been deleted and then recreated`,
      );
    }
    if (bound.kind === "Pod" && found.spec.serviceAccountName !== account.metadata.name) {
      throw badRequest(
        `cannot bind token for serviceaccount ${JSON.stringify(account.metadata.name)} to pod running with different serviceaccount name.`,
      );
    }
  }
  const issued = auth.issue(account, body);
  return {
    kind: "TokenRequest",
    apiVersion: "authentication.k8s.io/v1",
    metadata: {
      name: account.metadata.name,
      namespace: account.metadata.namespace,
      creationTimestamp: rfc3339(issued.expirationTimestamp - issued.expirationSeconds * 1000),
    },
    spec: { audiences: issued.audiences, expirationSeconds: issued.expirationSeconds, boundObjectRef: bound ?? null },
    status: { token: issued.token, expirationTimestamp: rfc3339(issued.expirationTimestamp) },
  };
}
