/**
 * Speaks the registries' HTTP protocol (OCI distribution), for one repository and one credential. What it is led to,
 * by a redirect or for a token, is judged as the registry itself is, and gets no credentials that are not for it.
 */
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { createSecureContext, getCACertificates, rootCertificates, type SecureContext } from "node:tls";
import { Agent, type Dispatcher, EnvHttpProxyAgent, request } from "undici";
import { type RegistryAuth, toError, VmletError } from "../../../src/provider/kit/index.ts";
import { type Destinations, DestinationError } from "./destinations.ts";
import { redact } from "./redact.ts";
import type { ImageReference } from "./reference.ts";

/** A registry, or what it led to, gave no usable answer. */
export class RegistryError extends VmletError {
  readonly code = "IMAGE_REGISTRY";
  readonly kind: "denied" | "not_found" | "unavailable" | "refused";

  constructor(kind: RegistryError["kind"], message: string) {
    super(message);
    this.kind = kind;
  }
}

interface RegistryClientOptions {
  destinations: Destinations;
  /** By which registries are known that no own certificate is for. */
  secureContext: SecureContext;
  reference: ImageReference;
  /** Absent: anonymous. */
  credential: RegistryAuth | undefined;
}

const MAX_REDIRECTS = 5;
const MAX_TOKEN_BYTES = 256 * 1024;
/** Of what a registry says about an error. */
const MAX_ERROR_BYTES = 16 * 1024;
const MAX_ERROR_CHARS = 300;
const CONNECT_TIMEOUT_MS = 15_000;
/** Where the owner of a host keeps the certificates of its registries' CAs, as for Docker and Podman. */
const CERTIFICATES = ["/etc/containers/certs.d", "/etc/docker/certs.d"];

/** The CAs of this host; where it has none, those that Node.js brings. */
export function hostSecureContext(): SecureContext {
  const own = getCACertificates("system");
  return createSecureContext({ ca: [...(own.length > 0 ? own : rootCertificates), ...getCACertificates("extra")] });
}

export class RegistryClient {
  readonly #options: RegistryClientOptions;
  /** To what the owner has named, and to everything else. */
  readonly #dispatchers: { named: Dispatcher; plain: Dispatcher; other: Dispatcher };
  #base: Promise<URL> | undefined;
  #authorization: string | undefined;

  constructor(options: RegistryClientOptions) {
    this.#options = options;
    const { destinations, reference } = options;
    const secureContext = ownContext(reference.registry) ?? options.secureContext;
    const common = { timeout: CONNECT_TIMEOUT_MS, allowH2: false };
    const connect = { ...common, secureContext, lookup: destinations.lookup };
    this.#dispatchers = {
      named: new Agent({ connect: { ...common, secureContext } }),
      // The owner has said that its certificate is not to be looked at.
      plain: new Agent({ connect: { ...common, rejectUnauthorized: false } }),
      // A proxy is the owner's, and wherever it is. Whom it connects to is its own to judge.
      other: new EnvHttpProxyAgent({ connect, requestTls: { ...common, secureContext } }),
    };
  }

  /** Ends all connections, and what is under way on them. */
  async close(): Promise<void> {
    await Promise.all(Object.values(this.#dispatchers).map((dispatcher) => dispatcher.destroy()));
  }

  /**
   * Asks for `path` below the repository, `manifests/latest`.
   * @returns the body of a reply of status 200; the caller reads it to its end, or destroys it
   * @throws RegistryError, DestinationError, the signal's reason
   */
  async get(path: string, accept: readonly string[], signal: AbortSignal): Promise<Dispatcher.ResponseData["body"]> {
    const url = new URL(`/v2/${this.#options.reference.path}/${path}`, await this.#registry(signal));
    const headers = { accept: accept.join(", ") };
    let reply = await this.#follow(url, headers, signal);
    if (reply.statusCode === 401) {
      const challenges = [reply.headers["www-authenticate"] ?? []].flat();
      await reply.body.dump({ limit: MAX_ERROR_BYTES, signal });
      this.#authorization = await this.#authorize(challenges, signal);
      reply = await this.#follow(url, headers, signal);
    }
    if (reply.statusCode === 200) return reply.body;
    throw errorOf(reply.statusCode, await this.#said(reply, signal));
  }

  /** Resolves when the registry answers at all. @throws RegistryError, DestinationError, the signal's reason */
  async ping(signal: AbortSignal): Promise<void> {
    const url = new URL("/v2/", await this.#registry(signal));
    const { body } = await this.#request(url, { method: "GET", headers: {} }, signal);
    await body.dump({ limit: MAX_ERROR_BYTES, signal });
  }

  /** Where the registry is: by https, and where the owner permits it by http if that does not work. */
  #registry(signal: AbortSignal): Promise<URL> {
    this.#base ??= this.#find(signal);
    return this.#base;
  }

  async #find(signal: AbortSignal): Promise<URL> {
    const { registry } = this.#options.reference;
    const host = registry === "docker.io" ? "registry-1.docker.io" : registry;
    const url = new URL(`https://${host}`);
    const plain = new URL(`http://${host}`);
    if (!this.#options.destinations.mayBePlain(plain)) return url;
    try {
      const { body } = await this.#request(new URL("/v2/", url), { method: "GET", headers: {} }, signal);
      await body.dump({ limit: MAX_ERROR_BYTES, signal });
      return url;
    } catch (thrown) {
      if (signal.aborted || thrown instanceof DestinationError) throw thrown;
      return plain;
    }
  }

  /** Follows redirects. The registry's authorization goes to the registry alone. */
  async #follow(first: URL, headers: Record<string, string>, signal: AbortSignal): Promise<Reply> {
    let url = first;
    for (let hops = 0; hops <= MAX_REDIRECTS; hops++) {
      const isTheirs = url.origin === first.origin && this.#authorization !== undefined;
      const own = isTheirs ? { authorization: this.#authorization! } : {};
      const reply = await this.#request(url, { method: "GET", headers: { ...headers, ...own } }, signal);
      const { location } = reply.headers;
      if (![301, 302, 303, 307, 308].includes(reply.statusCode) || typeof location !== "string")
        return { ...reply, isRegistrys: url.origin === first.origin };
      await reply.body.dump({ limit: MAX_ERROR_BYTES, signal });
      url = parseUrl(location, url);
    }
    throw new RegistryError("refused", `more than ${MAX_REDIRECTS} redirects`);
  }

  async #request(
    url: URL,
    options: { method: "GET" | "POST"; headers: Record<string, string>; body?: string },
    signal: AbortSignal,
  ): Promise<Dispatcher.ResponseData> {
    const { destinations } = this.#options;
    await destinations.assertAllowed(url);
    const { named, plain, other } = this.#dispatchers;
    const dispatcher = destinations.mayBePlain(url) ? plain : destinations.isNamed(url) ? named : other;
    try {
      // The pull has deadlines of its own, by the clock of this backend.
      const timeouts = { headersTimeout: 0, bodyTimeout: 0 };
      const headers = { ...options.headers, "accept-encoding": "identity", "user-agent": "vmlet" };
      return await request(`${url.origin}${url.pathname}${url.search}`, {
        ...options,
        ...timeouts,
        headers,
        dispatcher,
        signal,
      });
    } catch (thrown) {
      throw transportError(thrown, url, options.method, signal);
    }
  }

  /** @returns what to send as `Authorization` from now on */
  async #authorize(challenges: readonly string[], signal: AbortSignal): Promise<string> {
    const { credential } = this.#options;
    const denied = (why: string) => new RegistryError("denied", why);
    const bearer = challenges.find((challenge) => /^bearer\s/i.test(challenge));
    if (bearer !== undefined) return `Bearer ${await this.#token(bearer, signal)}`;
    if (!challenges.some((challenge) => /^basic\b/i.test(challenge)))
      throw denied("unauthorized, by no scheme that is known here");
    if (credential?.username === undefined) throw denied("unauthorized: authentication required");
    return basic(credential);
  }

  async #token(challenge: string, signal: AbortSignal): Promise<string> {
    const { credential, reference } = this.#options;
    const given = new Map<string, string>();
    for (const [, key, value] of challenge.matchAll(/\b([a-z]+)="([^"]*)"/gi)) given.set(key!.toLowerCase(), value!);
    const realm = parseUrl(given.get("realm") ?? "", undefined);
    const service = given.get("service");
    const scope = `repository:${reference.path}:pull`;
    const asked = { ...(service === undefined ? {} : { service }), scope };
    let reply: Dispatcher.ResponseData;
    if (credential?.identity_token === undefined) {
      for (const [key, value] of Object.entries(asked)) realm.searchParams.set(key, value);
      const headers: Record<string, string> = {};
      if (credential?.username !== undefined) headers["authorization"] = basic(credential);
      reply = await this.#request(realm, { method: "GET", headers }, signal);
    } else {
      const form = {
        ...asked,
        grant_type: "refresh_token",
        client_id: "vmlet",
        refresh_token: credential.identity_token,
      };
      const headers = { "content-type": "application/x-www-form-urlencoded" };
      const body = new URLSearchParams(form).toString();
      reply = await this.#request(realm, { method: "POST", headers, body }, signal);
    }
    // No redirects: what is sent here is a password.
    if (reply.statusCode !== 200) {
      await reply.body.dump({ limit: MAX_ERROR_BYTES, signal });
      const status = reply.statusCode >= 400 && reply.statusCode < 404 ? 401 : reply.statusCode;
      throw errorOf(status === 404 ? 401 : status, `no token from ${realm.host}: status ${reply.statusCode}`);
    }
    const text = (await readBody(reply.body, MAX_TOKEN_BYTES)).toString("utf8");
    const { token, access_token } = parseObject(text);
    const found = token ?? access_token;
    if (typeof found !== "string" || !/^[\x21-\x7e]{1,32768}$/.test(found))
      throw new RegistryError("refused", `no token from ${realm.host} that could be used`);
    return found;
  }

  /** What the registry itself says of an error; what it has led to is not quoted. */
  async #said({ statusCode, body, isRegistrys }: Reply, signal: AbortSignal): Promise<string> {
    const status = `status ${statusCode}`;
    if (!isRegistrys) {
      await body.dump({ limit: MAX_ERROR_BYTES, signal });
      return status;
    }
    const text = (await readBody(body, MAX_ERROR_BYTES).catch(() => Buffer.alloc(0))).toString("utf8");
    const { errors } = parseObject(text);
    const [first] = (Array.isArray(errors) ? errors : []) as ({ code?: unknown; message?: unknown } | null)[];
    const parts = [first?.code, first?.message].filter((part) => typeof part === "string" && part !== "");
    const said = parts
      .join(": ")
      .replace(/\p{Cc}/gu, " ")
      .slice(0, MAX_ERROR_CHARS);
    return said === "" ? status : `${status}, ${redact(said)}`;
  }
}

type Reply = Dispatcher.ResponseData & { isRegistrys: boolean };

/** @throws RegistryError refused when it has more bytes */
export async function readBody(body: AsyncIterable<Buffer>, maxBytes: number): Promise<Buffer> {
  const chunks: Buffer[] = [];
  let bytes = 0;
  for await (const chunk of body) {
    bytes += chunk.length;
    if (bytes > maxBytes) throw new RegistryError("refused", `the registry answers with more than ${maxBytes} bytes`);
    chunks.push(chunk);
  }
  return Buffer.concat(chunks);
}

/** What went wrong below HTTP, in words for the pod's event. */
function transportError(thrown: unknown, url: URL, method: string, signal: AbortSignal): Error {
  if (signal.aborted) return signal.reason as Error;
  const causes = thrown instanceof AggregateError ? (thrown.errors as unknown[]) : [thrown];
  const refused = causes.find((cause) => cause instanceof DestinationError);
  if (refused !== undefined) return refused;
  const error = toError(causes.at(-1));
  const said = `${method} ${redact(url.href)}: ${redact(error.message)}`;
  if (/certificate/i.test(`${(error as NodeJS.ErrnoException).code} ${error.message}`))
    return new RegistryError(
      "refused",
      `${said} (put its CA's certificate into ${CERTIFICATES[0]}/${url.host}/ca.crt, or name it in engine.images.insecureRegistries)`,
    );
  return new RegistryError("unavailable", said);
}

function errorOf(status: number, said: string): RegistryError {
  if (status === 401 || status === 403) return new RegistryError("denied", said);
  if (status === 404) return new RegistryError("not_found", said);
  return new RegistryError(status === 429 || status >= 500 ? "unavailable" : "refused", said);
}

function parseUrl(text: string, base: URL | undefined): URL {
  try {
    return new URL(text, base);
  } catch {
    throw new RegistryError(
      "refused",
      `the registry leads to ${JSON.stringify(redact(text).slice(0, 100))}, which is no address`,
    );
  }
}

function parseObject(text: string): Record<string, unknown> {
  try {
    const value: unknown = JSON.parse(text);
    if (typeof value === "object" && value !== null) return value as Record<string, unknown>;
  } catch {
    // Nothing of it is used.
  }
  return {};
}

function basic({ username = "", password = "" }: RegistryAuth): string {
  return `Basic ${Buffer.from(`${username}:${password}`).toString("base64")}`;
}

/** Trusting the CA certificates that the owner has put aside for this registry; undefined when there are none. */
function ownContext(registry: string): SecureContext | undefined {
  const folders = CERTIFICATES.map((folder) => join(folder, registry)).filter((folder) => existsSync(folder));
  const ca = folders.flatMap((folder) =>
    readdirSync(folder)
      .filter((name) => name.endsWith(".crt"))
      .map((name) => readFileSync(join(folder, name), "utf8")),
  );
  return ca.length === 0 ? undefined : createSecureContext({ ca });
}
