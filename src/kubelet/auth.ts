/**
 * Who asks, and may they? As the kubelet with webhook authentication and authorisation: a client certificate of the
 * cluster's CA, else a bearer token through TokenReview; then SubjectAccessReview on the Node. There is no anonymous
 * access, and a request that cannot be decided is refused.
 */
import { createHash } from "node:crypto";
import type { IncomingMessage } from "node:http";
import type { Socket } from "node:net";
import { TLSSocket } from "node:tls";
import PQueue from "p-queue";
import type { Kube } from "../kube/kube.ts";
import { subjectAccessReview, tokenReview, type UserInfo } from "../kube/reviews.ts";
import { BEARER_PROTOCOL_PREFIX } from "../streaming/websocket.ts";
import { headerList } from "../streaming/upgrade.ts";
import type { Logger } from "../telemetry/logger.ts";
import type { Metrics } from "../telemetry/metrics.ts";
import type { Clock } from "../util/clock.ts";
import { AnswerCache } from "./cache.ts";
import { HttpError } from "../http/http-error.ts";
import { TooManyFailures } from "./refusals.ts";

/** What is asked of the authoriser: `verb` on `nodes/SUBRESOURCE`, of which any one that is allowed suffices. */
export interface AccessAttributes {
  verb: string;
  subresources: readonly string[];
}

export interface AuthOptions {
  nodeName: string;
  kube: Kube;
  clock: Clock;
  logger: Logger;
  metrics: Metrics;
  /**
   * False while there is no client CA, or another than when it connected: then a certificate proves nothing, whatever
   * TLS says.
   */
  acceptCertificates(connection: Socket): boolean;
  tokenTtlMs?: number | undefined;
  allowTtlMs?: number | undefined;
  denyTtlMs?: number | undefined;
  /** Failures per second from one address before further tokens are not even looked at. */
  failuresPerSecond?: number | undefined;
  maxReviewsInFlight?: number | undefined;
}

export const TOKEN_TTL_MS = 2 * 60_000;
const BAD_TOKEN_TTL_MS = 10_000;
export const ALLOW_TTL_MS = 5 * 60_000;
export const DENY_TTL_MS = 30_000;
const MAX_CACHED = 4096;
const MAX_WAITING_REVIEWS = 256;
const REVIEW_TIMEOUT_MS = 10_000;
/** The API server refuses longer ones, and they would fill the cache's hash for nothing. */
const MAX_TOKEN_LENGTH = 16 * 1024;

export class Authenticator {
  readonly #options: AuthOptions;
  /** By hash of the token, so that no token stays in memory. `null`: not a valid one. */
  readonly #tokens: AnswerCache<{ user: UserInfo | null }>;
  readonly #reviews: Reviews;
  readonly #failures: FailureCounter;
  /** Connections on which an address tried more than its share. */
  readonly #givenUp = new WeakSet<Socket>();

  constructor(options: AuthOptions, reviews: Reviews) {
    this.#options = options;
    this.#reviews = reviews;
    this.#tokens = new AnswerCache({ clock: options.clock, maxEntries: MAX_CACHED });
    this.#failures = new FailureCounter(options.clock, options.failuresPerSecond ?? 10);
  }

  /** @throws HttpError 401, TooManyFailures of one address, 503 when the API server cannot be asked */
  async authenticate(request: IncomingMessage): Promise<UserInfo> {
    const { acceptCertificates, clock } = this.#options;
    const byCertificate = acceptCertificates(request.socket) ? certificateUser(request, clock.now()) : undefined;
    const user = byCertificate ?? (await this.#tokenUser(request));
    this.#options.metrics.authnDecisions.inc({ result: "allowed" });
    return user;
  }

  /** Whether it is a certificate that the caller is known by, as the API server is. */
  isByCertificate(request: IncomingMessage): boolean {
    const { acceptCertificates, clock } = this.#options;
    return acceptCertificates(request.socket) && certificateUser(request, clock.now()) !== undefined;
  }

  /** True when nothing more that comes on this connection is worth a look. */
  hasGivenUp(connection: Socket): boolean {
    return this.#givenUp.has(connection);
  }

  async #tokenUser(request: IncomingMessage): Promise<UserInfo> {
    const address = request.socket.remoteAddress ?? "";
    const token = bearerToken(request);
    if (token === undefined || token.length > MAX_TOKEN_LENGTH) throw this.#denied();
    const key = createHash("sha256").update(token).digest("base64");
    // Known tokens are answered even to an address that others misuse; only unknown ones cost a review. Each counts as
    // a failure until its answer is back, so that a burst cannot pass before the first answer.
    const isNew = !this.#tokens.knows(key);
    if (isNew && !this.#failures.count(address)) {
      this.#options.metrics.authnDecisions.inc({ result: "limited" });
      this.#givenUp.add(request.socket);
      throw new TooManyFailures();
    }
    let answer: { user: UserInfo | null };
    try {
      answer = await this.#tokens.get(
        key,
        () => this.#review(token),
        ({ user }) => (user ? (this.#options.tokenTtlMs ?? TOKEN_TTL_MS) : BAD_TOKEN_TTL_MS),
      );
    } catch (thrown) {
      if (thrown instanceof HttpError) throw thrown;
      this.#options.metrics.authnDecisions.inc({ result: "error" });
      this.#options.logger.warn({ err: thrown }, "Token review failed, request refused");
      throw new HttpError(503, "Authentication is unavailable: the API server cannot be asked");
    }
    if (answer.user === null) throw this.#denied();
    if (isNew) this.#failures.forgive(address);
    return answer.user;
  }

  #denied(): HttpError {
    this.#options.metrics.authnDecisions.inc({ result: "denied" });
    return new HttpError(401, "Unauthorized");
  }

  async #review(token: string): Promise<{ user: UserInfo | null }> {
    return { user: (await this.#reviews.run((kube, signal) => tokenReview(kube, { token }, signal))) ?? null };
  }
}

export class Authorizer {
  readonly #options: AuthOptions;
  readonly #reviews: Reviews;
  readonly #decisions: AnswerCache<boolean>;

  constructor(options: AuthOptions, reviews: Reviews) {
    this.#options = options;
    this.#reviews = reviews;
    this.#decisions = new AnswerCache({ clock: options.clock, maxEntries: MAX_CACHED });
  }

  /** @throws HttpError 403, or 503 when the API server cannot be asked */
  async authorize(user: UserInfo, access: AccessAttributes): Promise<void> {
    const { metrics, logger } = this.#options;
    for (const subresource of access.subresources) {
      let allowed: boolean;
      try {
        allowed = await this.#isAllowed(user, access.verb, subresource);
      } catch (thrown) {
        if (thrown instanceof HttpError) throw thrown;
        metrics.authzDecisions.inc({ result: "error" });
        logger.warn({ err: thrown, user: user.username }, "Access review failed, request refused");
        throw new HttpError(
          503,
          `Authorization error (user=${user.username}, verb=${access.verb}, resource=nodes, subresource=${subresource})`,
        );
      }
      if (allowed) {
        metrics.authzDecisions.inc({ result: "allowed" });
        return;
      }
    }
    metrics.authzDecisions.inc({ result: "denied" });
    throw new HttpError(
      403,
      `Forbidden (user=${user.username}, verb=${access.verb}, resource=nodes, subresource(s)=[${access.subresources.join(" ")}])\n`,
    );
  }

  #isAllowed(user: UserInfo, verb: string, subresource: string): Promise<boolean> {
    const key = createHash("sha256")
      .update(JSON.stringify([user, verb, subresource]))
      .digest("base64");
    const { allowTtlMs = ALLOW_TTL_MS, denyTtlMs = DENY_TTL_MS } = this.#options;
    return this.#decisions.get(
      key,
      async () => {
        const attributes = { verb, version: "v1", resource: "nodes", subresource, name: this.#options.nodeName };
        return (await this.#reviews.run((kube, signal) => subjectAccessReview(kube, { user, attributes }, signal)))
          .allowed;
      },
      (allowed) => (allowed ? allowTtlMs : denyTtlMs),
    );
  }
}

/** Reviews sent to the API server, a bounded number at a time: an attacker must not reach it through us. */
export class Reviews {
  readonly #kube: Kube;
  readonly #queue: PQueue;

  constructor(kube: Kube, maxInFlight: number) {
    this.#kube = kube;
    this.#queue = new PQueue({ concurrency: maxInFlight });
  }

  /** @throws HttpError 429 when too many wait already, KubeApiError */
  async run<T>(ask: (kube: Kube, signal: AbortSignal) => Promise<T>): Promise<T> {
    if (this.#queue.size >= MAX_WAITING_REVIEWS) throw new HttpError(429, "Too many requests", [["Retry-After", "1"]]);
    return await this.#queue.add(() => ask(this.#kube, AbortSignal.timeout(REVIEW_TIMEOUT_MS)));
  }
}

/** The user of a verified client certificate: common name and organizations, as Kubernetes maps them. */
function certificateUser(request: IncomingMessage, now: number): UserInfo | undefined {
  const { socket } = request;
  // `authorized` says that the chain ends in our CA and that the certificate is for client authentication.
  if (!(socket instanceof TLSSocket) || !socket.authorized) return undefined;
  const { subject, valid_to: end } = socket.getPeerCertificate();
  // TLS looked at it when the connection began.
  if (Date.parse(end) < now) return undefined;
  // Node gives an array where a name has several values.
  const commonName: unknown = subject?.CN;
  const organization = subject?.O;
  if (typeof commonName !== "string" || commonName === "") return undefined;
  const groups = organization === undefined ? [] : Array.isArray(organization) ? organization : [organization];
  // The group that the API server adds to every authenticated user.
  return { username: commonName, groups: [...groups, "system:authenticated"] };
}

function bearerToken(request: IncomingMessage): string | undefined {
  const header = request.headers.authorization;
  if (header !== undefined) {
    const [scheme = "", token = ""] = header.trim().split(/ +/, 2);
    return scheme.toLowerCase() === "bearer" && token !== "" ? token : undefined;
  }
  const offer = headerList(request.headers["sec-websocket-protocol"]).find((name) =>
    name.startsWith(BEARER_PROTOCOL_PREFIX),
  );
  if (offer === undefined) return undefined;
  const token = Buffer.from(offer.slice(BEARER_PROTOCOL_PREFIX.length), "base64url").toString("utf8");
  return token === "" ? undefined : token;
}

/** Failed authentications per address and second. */
class FailureCounter {
  readonly #clock: Clock;
  readonly #perSecond: number;
  #second = 0;
  #counts = new Map<string, number>();

  constructor(clock: Clock, perSecond: number) {
    this.#clock = clock;
    this.#perSecond = perSecond;
  }

  /** @returns false when `address` had its share of this second already */
  count(address: string): boolean {
    const second = Math.floor(this.#clock.monotonic() / 1000);
    if (second !== this.#second) this.#counts = new Map();
    this.#second = second;
    const count = this.#counts.get(address) ?? 0;
    if (count >= this.#perSecond || (count === 0 && this.#counts.size >= MAX_CACHED)) return false;
    this.#counts.set(address, count + 1);
    return true;
  }

  forgive(address: string): void {
    const count = this.#counts.get(address);
    if (count !== undefined) this.#counts.set(address, Math.max(0, count - 1));
  }
}
