/**
 * Who asks, and what they may. One administrator's bearer token, service-account tokens that this server signs, and
 * impersonation. Authorization is a single rule instead of RBAC: administrators and nodes may do everything, others may
 * read discovery and ask about themselves, unless `allow` says more.
 */
import {
  createPublicKey,
  generateKeyPairSync,
  randomUUID,
  sign,
  timingSafeEqual,
  verify,
  type KeyObject,
} from "node:crypto";
import type { IncomingHttpHeaders } from "node:http";
import type { Clock } from "../../util/clock.ts";
import { isRecord, type Json, type StoredObject } from "../objects/object.ts";
import type { User } from "../kinds/object-api.ts";
import { ApiStatusError, unauthorized } from "../objects/errors.ts";

export const ISSUER = "https://kubernetes.default.svc.cluster.local";

/** What a request wants to do, in the terms of a SubjectAccessReview. */
export interface Attributes {
  verb: string;
  path: string;
  group?: string;
  version?: string;
  resource?: string;
  subresource?: string;
  namespace?: string;
  name?: string;
}

/** Grants beyond the built-in rule; tests use it to let a service account in. */
export type Allow = (user: User, attributes: Attributes) => boolean;

interface Claims {
  aud: string[];
  exp: number;
  iat: number;
  nbf: number;
  iss: string;
  jti: string;
  sub: string;
  "kubernetes.io": {
    namespace: string;
    serviceaccount: { name: string; uid: string };
    pod?: { name: string; uid: string };
    node?: { name: string; uid: string };
  };
}

const base64url = (value: unknown): string => Buffer.from(JSON.stringify(value)).toString("base64url");

export class Auth {
  readonly #adminToken: string;
  readonly #clock: Clock;
  readonly #allow: Allow;
  readonly #key: KeyObject;
  readonly #publicKey: KeyObject;
  readonly #find: (resource: string, key: string) => StoredObject | undefined;
  readonly #keyId = randomUUID();

  constructor(options: {
    adminToken: string;
    clock: Clock;
    allow?: Allow | undefined;
    find: (resource: string, key: string) => StoredObject | undefined;
  }) {
    this.#adminToken = options.adminToken;
    this.#clock = options.clock;
    this.#allow = options.allow ?? (() => false);
    this.#find = options.find;
    const { privateKey } = generateKeyPairSync("ec", { namedCurve: "P-256" });
    this.#key = privateKey;
    this.#publicKey = createPublicKey(privateKey);
  }

  /**
   * The user of a request, after impersonation.
   * @throws ApiStatusError 401 for a bad token, 403 for impersonating without right
   */
  authenticate(headers: IncomingHttpHeaders): User {
    const bearer = /^Bearer (.+)$/i.exec(headers.authorization ?? "")?.[1];
    const user = bearer === undefined ? anonymous : this.#userOfToken(bearer);
    if (!user) throw unauthorized();
    const as = headers["impersonate-user"];
    if (typeof as !== "string") return user;
    if (!isAdmin(user))
      throw new ApiStatusError(
        403,
        "Forbidden",
        `users "${as}" is forbidden: User "${user.username}" cannot impersonate resource "users" in API group "" at the cluster scope`,
      );
    return impersonated(as, headers);
  }

  /** Undefined when the token is not one of ours, is over, or its service account is gone. */
  #userOfToken(token: string): User | undefined {
    if (sameSecret(token, this.#adminToken))
      return { username: "kubernetes-admin", groups: ["system:masters", "system:authenticated"] };
    const found = this.verify(token);
    // A token for another audience says nothing here.
    return found?.audiences.includes(ISSUER) ? found.user : undefined;
  }

  authorize(user: User, attributes: Attributes): boolean {
    if (isAdmin(user) || user.groups.includes("system:nodes")) return true;
    if (this.#allow(user, attributes)) return true;
    if (!user.groups.includes("system:authenticated"))
      return /^\/(healthz|livez|readyz|version)(\/|$)/.test(attributes.path);
    const selfReview =
      attributes.verb === "create" && /^selfsubject(access|rules)?reviews$/.test(attributes.resource ?? "");
    return selfReview || (attributes.resource === undefined && attributes.verb === "get");
  }

  /** A signed token for a service account: the TokenRequest API's answer. */
  issue(
    account: StoredObject,
    request: Json,
  ): { token: string; expirationTimestamp: number; audiences: string[]; expirationSeconds: number } {
    const now = Math.floor(this.#clock.now() / 1000);
    const seconds = (request?.spec?.expirationSeconds as number | undefined) ?? 3600;
    const audiences = (request?.spec?.audiences as string[] | undefined) ?? [];
    const aud = audiences.length > 0 ? audiences : [ISSUER];
    const bound = request?.spec?.boundObjectRef as { kind: string; name: string; uid: string } | undefined;
    const namespace = account.metadata.namespace!;
    const pod = bound?.kind === "Pod" ? this.#find("/pods", `${namespace}/${bound.name}`) : undefined;
    const node = pod?.spec.nodeName ? this.#find("/nodes", pod.spec.nodeName as string) : undefined;
    const claims: Claims = {
      aud,
      exp: now + seconds,
      iat: now,
      iss: ISSUER,
      jti: randomUUID(),
      "kubernetes.io": {
        namespace,
        ...(node && { node: { name: node.metadata.name, uid: node.metadata.uid } }),
        ...(pod && { pod: { name: pod.metadata.name, uid: pod.metadata.uid } }),
        serviceaccount: { name: account.metadata.name, uid: account.metadata.uid },
      },
      nbf: now,
      sub: `system:serviceaccount:${namespace}:${account.metadata.name}`,
    };
    const signed = `${base64url({ alg: "ES256", kid: this.#keyId })}.${base64url(claims)}`;
    const signature = sign("sha256", Buffer.from(signed), { key: this.#key, dsaEncoding: "ieee-p1363" }).toString(
      "base64url",
    );
    return {
      token: `${signed}.${signature}`,
      expirationTimestamp: (now + seconds) * 1000,
      audiences: aud,
      expirationSeconds: seconds,
    };
  }

  /** The user and audiences of a token issued here that is valid now; bound objects must still exist. */
  verify(token: string): { user: User; audiences: string[] } | undefined {
    const [header, payload, signature] = token.split(".");
    if (!header || !payload || !signature) return undefined;
    const genuine = verify(
      "sha256",
      Buffer.from(`${header}.${payload}`),
      { key: this.#publicKey, dsaEncoding: "ieee-p1363" },
      Buffer.from(signature, "base64url"),
    );
    if (!genuine) return undefined;
    const claims = JSON.parse(Buffer.from(payload, "base64url").toString()) as Claims;
    if (claims.exp * 1000 <= this.#clock.now()) return undefined;
    const { namespace, serviceaccount, pod, node } = claims["kubernetes.io"];
    if (this.#find("/serviceaccounts", `${namespace}/${serviceaccount.name}`)?.metadata.uid !== serviceaccount.uid)
      return undefined;
    if (pod && this.#find("/pods", `${namespace}/${pod.name}`)?.metadata.uid !== pod.uid) return undefined;
    return {
      audiences: claims.aud,
      user: {
        username: claims.sub,
        uid: serviceaccount.uid,
        groups: ["system:serviceaccounts", `system:serviceaccounts:${namespace}`, "system:authenticated"],
        extra: {
          "authentication.kubernetes.io/credential-id": [`JTI=${claims.jti}`],
          ...(node && {
            "authentication.kubernetes.io/node-name": [node.name],
            "authentication.kubernetes.io/node-uid": [node.uid],
          }),
          ...(pod && {
            "authentication.kubernetes.io/pod-name": [pod.name],
            "authentication.kubernetes.io/pod-uid": [pod.uid],
          }),
        },
      },
    };
  }

  /** What a TokenReview finds out about any token, the administrator's included. */
  review(token: string, audiences: readonly string[]): { user: User; audiences: string[] } | undefined {
    if (sameSecret(token, this.#adminToken)) {
      return { user: this.#userOfToken(token)!, audiences: audiences.length > 0 ? [...audiences] : [ISSUER] };
    }
    const found = this.verify(token);
    const wanted = audiences.length > 0 ? audiences : [ISSUER];
    const shared = found?.audiences.filter((audience) => wanted.includes(audience)) ?? [];
    return found && shared.length > 0 ? { user: found.user, audiences: shared } : undefined;
  }

  /** The public key, as `/openid/v1/jwks` serves it. */
  jwks(): Json {
    return { keys: [{ ...this.#publicKey.export({ format: "jwk" }), use: "sig", kid: this.#keyId, alg: "ES256" }] };
  }
}

const anonymous: User = { username: "system:anonymous", groups: ["system:unauthenticated"] };

const isAdmin = (user: User): boolean => user.groups.includes("system:masters");

function sameSecret(a: string, b: string): boolean {
  const [left, right] = [Buffer.from(a), Buffer.from(b)];
  return left.length === right.length && timingSafeEqual(left, right);
}

function impersonated(username: string, headers: IncomingHttpHeaders): User {
  const named = headers["impersonate-group"];
  const groups = typeof named === "string" ? named.split(",").map((group) => group.trim()) : (named ?? []);
  const account = /^system:serviceaccount:([^:]+):[^:]+$/.exec(username);
  if (groups.length === 0 && account) groups.push("system:serviceaccounts", `system:serviceaccounts:${account[1]}`);
  if (username !== anonymous.username && !groups.includes("system:authenticated")) groups.push("system:authenticated");
  const uid = headers["impersonate-uid"];
  return { username, groups, ...(typeof uid === "string" && { uid }) };
}

/** Reads SubjectAccessReview-like attributes from a review's spec. */
export function attributesOfReview(spec: Json): Attributes {
  const resource = isRecord(spec?.resourceAttributes) ? (spec.resourceAttributes as Record<string, string>) : undefined;
  if (!resource)
    return { verb: spec?.nonResourceAttributes?.verb ?? "", path: spec?.nonResourceAttributes?.path ?? "" };
  return { verb: "", path: "", ...resource };
}
