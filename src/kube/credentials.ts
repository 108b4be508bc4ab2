/** What a kubeconfig and the files that it names give for a request, and keeping that fresh. */
import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import type { Cluster, KubeConfig as ClientNodeConfig, User } from "@kubernetes/client-node";
import { Backoff } from "../queue/backoff.ts";
import type { Logger } from "../telemetry/logger.ts";
import { unlessAborted } from "../util/abort.ts";
import type { Clock } from "../util/clock.ts";
import { trimEnd } from "../util/text.ts";
import type { CertificatePair } from "./certificates.ts";
import { ExecPlugin, type ExecConfig } from "./exec-plugin.ts";
import type { KubeConfig } from "./kubeconfig.ts";

/**
 * Where the API server is and how to prove who we are. Files are read again every few seconds, so rotated certificates
 * and tokens are picked up without a restart; OIDC and the older clouds' ways are client-node's.
 */
export interface Credentials {
  /** For example `https://10.0.0.1:6443`, without a trailing slash; may carry a path prefix. */
  readonly server: string;
  readonly proxyUrl: string | undefined;
  /** `authorization` and the like. */
  readonly headers: Readonly<Record<string, string>>;
  readonly tls: {
    readonly ca?: string | Buffer;
    readonly cert?: string | Buffer;
    readonly key?: string | Buffer;
    readonly servername?: string;
    readonly rejectUnauthorized?: boolean;
  };
  /** Changes exactly when new connections have to be made. */
  readonly tlsKey: string;
}

/** How long credentials are used before the files are looked at again. */
const FRESH_MS = 5_000;
/** A reading that takes longer is not waited for while there is something that was read before. */
const PATIENCE_MS = 5_000;
/** A reading that takes longer is given up. A plugin has its own limit, and says more when it meets it. */
const LONGEST_READING_MS = 35_000;
/** After a reading that failed, the next begins so much later: a plugin may fail fast, and there are many requests. */
const FAILED_MS = { first: 1_000, max: 30_000 };

interface CredentialSourceOptions {
  /** As soon as there is one, replaces the identity in the kubeconfig. */
  certificate?: (() => CertificatePair | undefined) | undefined;
  logger?: Logger | undefined;
}

interface Reading {
  credentials: Promise<Credentials>;
  startedAt: number;
  abort: (reason: unknown) => void;
}

export class CredentialSource {
  readonly #kubeConfig: KubeConfig;
  readonly #clock: Clock;
  readonly #options: CredentialSourceOptions;
  readonly #plugin: ExecPlugin | undefined;
  readonly #failures: Backoff;
  /** client-node's, where only that can prove who we are. */
  #foreign: Promise<ClientNodeConfig> | undefined;
  #cached: { credentials: Credentials; readAt: number } | undefined;
  #reading: Reading | undefined;
  #failed: { error: unknown; until: number } | undefined;

  constructor(kubeConfig: KubeConfig, clock: Clock, options: CredentialSourceOptions = {}) {
    this.#kubeConfig = kubeConfig;
    this.#clock = clock;
    this.#options = options;
    const exec = execOf(kubeConfig);
    const cluster = kubeConfig.getCurrentCluster();
    this.#plugin = exec && cluster ? new ExecPlugin(exec, cluster, clock) : undefined;
    this.#failures = new Backoff({
      initialMs: FAILED_MS.first,
      maxMs: FAILED_MS.max,
      jitter: "none",
      clock,
      random: () => 0,
    });
  }

  /**
   * What was read within the last seconds; else it is read again. While that takes long, what was read before is given
   * as long as the API server has not refused it.
   *
   * @throws Error when there is no current cluster, a file cannot be read, or a plugin fails; the signal's reason on
   *   abort
   */
  async get(signal: AbortSignal = new AbortController().signal): Promise<Credentials> {
    signal.throwIfAborted();
    const now = this.#clock.monotonic();
    const cached = this.#cached;
    if (cached && now - cached.readAt < FRESH_MS) return cached.credentials;
    if (this.#reading === undefined && this.#failed !== undefined && now < this.#failed.until) {
      if (cached) return cached.credentials;
      throw this.#failed.error;
    }
    const { credentials, startedAt } = (this.#reading ??= this.#begin());
    if (!cached) return await unlessAborted(credentials, signal);
    return await this.#withinPatience(credentials, startedAt, cached.credentials, signal);
  }

  /**
   * The API server does not accept these. The next request reads again, and forgets what client-node's authenticators
   * hold. Ignored when these have been replaced already.
   */
  refuse(credentials: Credentials): void {
    if (this.#cached?.credentials !== credentials) return;
    this.#cached = undefined;
    this.#foreign = undefined;
    this.#plugin?.refused();
  }

  /** Ends a reading that is under way, and with it the plugin that runs. */
  close(): void {
    this.#reading?.abort(new Error("the transport was closed"));
  }

  async #withinPatience(
    reading: Promise<Credentials>,
    startedAt: number,
    before: Credentials,
    signal: AbortSignal,
  ): Promise<Credentials> {
    const leftMs = startedAt + PATIENCE_MS - this.#clock.monotonic();
    if (leftMs <= 0) return before;
    let cancel = () => {};
    const tooLong = new Promise<Credentials>((resolve) => {
      cancel = this.#clock.after(leftMs, () => resolve(before));
    });
    try {
      // What was read before also stands when the reading fails: whether it is still good, the API server says.
      return await unlessAborted(Promise.race([reading.catch(() => before), tooLong]), signal);
    } finally {
      cancel();
    }
  }

  #begin(): Reading {
    const limit = new AbortController();
    const cancel = this.#clock.after(LONGEST_READING_MS, () =>
      limit.abort(new Error(`reading them took longer than ${LONGEST_READING_MS / 1000} s`)),
    );
    const credentials = unlessAborted(this.#read(limit.signal), limit.signal).then(
      (read) => {
        this.#failures.reset();
        this.#failed = undefined;
        this.#cached = { credentials: read, readAt: this.#clock.monotonic() };
        return read;
      },
      (thrown: unknown) => {
        this.#failed = { error: thrown, until: this.#clock.monotonic() + this.#failures.next() };
        this.#options.logger?.warn({ err: thrown }, "The credentials for the API server could not be read");
        throw thrown;
      },
    );
    const reading: Reading = {
      credentials: credentials.finally(() => {
        cancel();
        this.#reading = undefined;
      }),
      startedAt: this.#clock.monotonic(),
      abort: (reason) => limit.abort(reason),
    };
    // Callers that wait for it get the failure; there may be none left.
    reading.credentials.catch(() => undefined);
    return reading;
  }

  async #read(signal: AbortSignal): Promise<Credentials> {
    const kubeConfig = this.#kubeConfig;
    const cluster = kubeConfig.getCurrentCluster();
    if (!cluster) throw new Error(`The kubeconfig has no cluster for its context "${kubeConfig.currentContext}"`);
    const identity = ownIdentity(cluster, kubeConfig.getCurrentUser());
    const headers: Record<string, string> = { ...identity.headers };
    let { tls } = identity;
    const certificate = this.#options.certificate?.();
    if (certificate) {
      delete headers["authorization"];
      tls = { ...tls, ...certificate };
    } else if (this.#plugin) {
      const { token, cert, key } = await this.#plugin.credentials(signal);
      if (token !== undefined) headers["authorization"] = `Bearer ${token}`;
      if (cert !== undefined && key !== undefined) tls = { ...tls, cert, key };
    } else if (isForeign(kubeConfig.getCurrentUser())) {
      const given = await this.#foreignIdentity(kubeConfig);
      Object.assign(headers, given.headers);
      tls = { ...tls, ...given.tls };
    }
    // A token file usually ends with a newline, which may not stand in a header.
    for (const [name, value] of Object.entries(headers)) headers[name] = value.trim();
    const hash = createHash("sha256");
    for (const part of [tls.ca, tls.cert, tls.key, tls.servername, String(tls.rejectUnauthorized)]) {
      hash.update(part ?? "").update("\0");
    }
    return {
      server: trimEnd(cluster.server, "/"),
      proxyUrl: cluster.proxyUrl,
      headers,
      tls,
      tlsKey: hash.digest("hex"),
    };
  }

  async #foreignIdentity(kubeConfig: KubeConfig): Promise<Identity> {
    this.#foreign ??= clientNodeConfig(kubeConfig);
    const options: Applied = {};
    await (await this.#foreign).applyToHTTPSOptions(options);
    const headers: Record<string, string> = {};
    for (const [name, value] of Object.entries(options.headers ?? {}))
      if (value !== undefined) headers[name.toLowerCase()] = String(value);
    const { cert, key } = options as { cert?: string | Buffer; key?: string | Buffer };
    return { headers, tls: { ...(cert && { cert }), ...(key && { key }) } };
  }
}

/**
 * The current user's exec plugin, where nothing in the kubeconfig goes before it (client-go: `UpdateTransportConfig`).
 */
function execOf(kubeConfig: KubeConfig): ExecConfig | undefined {
  const user = kubeConfig.getCurrentUser();
  if (!user || user.token || user.username || user.certFile || user.certData) return undefined;
  return (user.exec ?? user.authProvider?.config?.exec) as ExecConfig | undefined;
}

/** What a reading finds in the kubeconfig and the files that it names. */
interface Identity {
  headers: Readonly<Record<string, string>>;
  tls: Credentials["tls"];
}

/** Client-go's `UpdateTransportConfig`: what goes before what. A file is read at each reading. */
function ownIdentity(cluster: Cluster, user: User | null): Identity {
  const { certFile, certData, keyFile, keyData, username, password, impersonateUser } = user ?? {};
  const [ca, cert, key] = [
    content(cluster.caFile, cluster.caData),
    content(certFile, certData),
    content(keyFile, keyData),
  ];
  const tokenFile = tokenFileOf(user);
  const token = tokenFile === undefined ? user?.token : readFileSync(tokenFile, "utf8");
  const authorization = token
    ? `Bearer ${token}`
    : username && `Basic ${Buffer.from(`${username}:${password ?? ""}`).toString("base64")}`;
  return {
    headers: {
      ...(authorization && { authorization }),
      ...(impersonateUser && { "impersonate-user": impersonateUser }),
    },
    tls: {
      ...(ca && { ca }),
      ...(cert && { cert }),
      ...(key && { key }),
      ...(cluster.tlsServerName && { servername: cluster.tlsServerName }),
      ...(cluster.skipTLSVerify && { rejectUnauthorized: false }),
    },
  };
}

function content(file: string | undefined, base64: string | undefined): Buffer | undefined {
  if (file) return readFileSync(file);
  return base64 ? Buffer.from(base64, "base64") : undefined;
}

function tokenFileOf(user: User | null): string | undefined {
  return (user?.authProvider as { config?: { tokenFile?: string } } | undefined)?.config?.tokenFile;
}

/** An `auth-provider` of the older clouds, or OIDC: client-node knows them. */
function isForeign(user: User | null): boolean {
  const provider = user?.authProvider as { config?: { exec?: unknown } } | undefined;
  return provider != null && tokenFileOf(user) === undefined && provider.config?.exec === undefined;
}

type Applied = Parameters<ClientNodeConfig["applyToHTTPSOptions"]>[0];

/** A KubeConfig of client-node's, whose authenticators remember nothing yet. It is loaded here, and only here. */
async function clientNodeConfig({ clusters, users, contexts, currentContext }: KubeConfig): Promise<ClientNodeConfig> {
  // Not its main module, which has all of Kubernetes' types: what this one needs is a fortieth of it.
  const { KubeConfig } = await import("@kubernetes/client-node/dist/config.js");
  const config = new KubeConfig();
  config.loadFromOptions({
    // client-node refuses http: servers unless TLS verification is off; there is none to verify.
    clusters: clusters.map((c) => (c.server.startsWith("http:") ? { ...c, skipTLSVerify: true } : c)),
    users,
    contexts,
    currentContext,
  });
  return config;
}
