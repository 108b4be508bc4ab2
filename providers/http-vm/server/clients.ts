/**
 * Who calls the Machine API: the client that a bearer token or a certificate belongs to, and the provider as that
 * client sees it.
 */
import { createHash, timingSafeEqual } from "node:crypto";
import type { IncomingMessage } from "node:http";
import type { Socket } from "node:net";
import { TLSSocket } from "node:tls";
import { type Clock, type Provider, ProviderError } from "../../../src/provider/kit/index.ts";
import type { ApiClient, ServerAuth } from "./options.ts";
import { scopedProvider, VERBS } from "./scope.ts";

export interface Caller {
  /** The client's. */
  name: string;
  provider: Provider;
}

interface Known extends ApiClient {
  provider: Provider;
}

/** The name of those who need not show which of the clients they are. */
const DEFAULT_CLIENT = "default";

export class Clients {
  readonly #clients: readonly Known[];
  readonly #clock: Clock;
  /** Names in a connection's certificate, which does not change while it lasts. */
  readonly #certificates = new WeakMap<Socket, { names: ReadonlySet<string>; expiresAt: number }>();
  /** Connections whose certificate was checked against the client CA that counts now. */
  #checked = new WeakSet<Socket>();

  constructor(auth: ServerAuth, provider: Provider, clock: Clock) {
    this.#clock = clock;
    const clients = [...(auth.clients ?? [])];
    if (auth.bearerTokens !== undefined || clients.length === 0)
      clients.unshift({ name: DEFAULT_CLIENT, bearerTokens: auth.bearerTokens, verbs: VERBS });
    this.#clients = clients.map((client) => ({ ...client, provider: scopedProvider(provider, client.name, client) }));
  }

  /** A TLS handshake is over. */
  connected(socket: Socket): void {
    this.#checked.add(socket);
  }

  /** The client CA has changed: certificates of the old one no longer count. */
  forgetCertificates(): void {
    this.#checked = new WeakSet();
  }

  /** @throws ProviderError unauthorized */
  authenticate(request: IncomingMessage): Caller {
    const token = /^Bearer ([\x21-\x7e]+)$/i.exec(request.headers.authorization ?? "")?.[1];
    const names = this.#certificateNames(request.socket);
    // All of them are compared, so that the time does not show which one a token resembles.
    const found = this.#clients.filter((client) => isClient(client, token, names))[0];
    if (found !== undefined) return found;
    throw new ProviderError("unauthorized", this.#whyNot(token, names));
  }

  #whyNot(token: string | undefined, names: ReadonlySet<string>): string {
    const byToken = this.#clients.some(({ bearerTokens }) => bearerTokens !== undefined);
    if (token !== undefined && byToken) return "the bearer token is not accepted";
    if (names.size > 0 && this.#clients.some(({ certificateNames }) => certificateNames !== undefined))
      return "the certificate's names are those of no client";
    return byToken ? "a bearer token is required" : "a client certificate is required";
  }

  #certificateNames(socket: Socket): ReadonlySet<string> {
    if (!(socket instanceof TLSSocket) || !socket.authorized) return new Set();
    let certificate = this.#certificates.get(socket);
    if (certificate === undefined) {
      const shown = socket.getPeerX509Certificate();
      if (shown === undefined) return new Set();
      certificate = {
        names: new Set([...commonNames(socket), ...alternativeNames(shown.subjectAltName ?? "")]),
        expiresAt: Date.parse(shown.validTo),
      };
      this.#certificates.set(socket, certificate);
    }
    const counts = this.#checked.has(socket) && certificate.expiresAt >= this.#clock.now();
    if (!counts) throw new ProviderError("unauthorized", "the client certificate counts no more: connect again");
    return certificate.names;
  }
}

/** All that the client has to show is there. */
function isClient(
  { bearerTokens, certificateNames }: ApiClient,
  token: string | undefined,
  names: ReadonlySet<string>,
): boolean {
  const hasToken = bearerTokens === undefined || (token !== undefined && isOneOf(token, bearerTokens()));
  return hasToken && (certificateNames === undefined || certificateNames.some((name) => names.has(name)));
}

/** Compares digests of equal length with all of `accepted`, so the time tells nothing about a token. */
function isOneOf(given: string, accepted: readonly string[]): boolean {
  const digest = sha256(given);
  let found = false;
  for (const token of accepted) {
    if (token !== "" && timingSafeEqual(digest, sha256(token))) found = true;
  }
  return found;
}

function sha256(text: string): Buffer {
  return createHash("sha256").update(text).digest();
}

function commonNames(socket: TLSSocket): readonly string[] {
  // Node gives an array where a name has several values.
  const name: string | string[] | undefined = socket.getPeerCertificate().subject?.CN;
  return name === undefined ? [] : Array.isArray(name) ? name : [name];
}

/**
 * DNS and URI names of `DNS:a.example, URI:"spiffe://x/a,b"`: Node writes a name that holds a comma, a quote or worse
 * as JSON (CVE-2021-44532).
 */
function alternativeNames(text: string): string[] {
  const names: string[] = [];
  for (const [, type, value = ""] of text.matchAll(/(?:^|, )([A-Za-z ]+):("(?:[^"\\]|\\.)*"|[^,]*)/g)) {
    if (type === "DNS" || type === "URI") names.push(value.startsWith('"') ? (JSON.parse(value) as string) : value);
  }
  return names;
}
