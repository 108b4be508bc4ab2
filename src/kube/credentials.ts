/** Reads kubeconfigs and service account files, and keeps what they give fresh. */
import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { dirname, resolve } from "node:path";
import { KubeConfig, type User } from "@kubernetes/client-node";
import { parse } from "yaml";
import { Backoff } from "../queue/backoff.ts";
import type { Logger } from "../telemetry/logger.ts";
import { unlessAborted } from "../util/abort.ts";
import type { Clock } from "../util/clock.ts";
import { toError, VmletError } from "../util/errors.ts";
import { trimEnd } from "../util/text.ts";
import type { CertificatePair } from "./certificates.ts";
import { ExecPlugin, type ExecConfig } from "./exec-plugin.ts";

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
    readonly passphrase?: string;
    readonly servername?: string;
    readonly rejectUnauthorized?: boolean;
  };
  /** Changes exactly when new connections have to be made. */
  readonly tlsKey: string;
}

/** The kubeconfig cannot be used: its owner has to change something. */
class KubeConfigError extends VmletError {
  readonly code = "KUBECONFIG";
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
  readonly #template: KubeConfig;
  readonly #clock: Clock;
  readonly #options: CredentialSourceOptions;
  readonly #plugin: ExecPlugin | undefined;
  readonly #failures: Backoff;
  #kubeConfig: KubeConfig;
  #cached: { credentials: Credentials; readAt: number } | undefined;
  #reading: Reading | undefined;
  #failed: { error: unknown; until: number } | undefined;

  constructor(kubeConfig: KubeConfig, clock: Clock, options: CredentialSourceOptions = {}) {
    this.#template = kubeConfig;
    this.#kubeConfig = copyOf(kubeConfig);
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
   * hold (a token file's content). Ignored when these have been replaced already.
   */
  refuse(credentials: Credentials): void {
    if (this.#cached?.credentials !== credentials) return;
    this.#cached = undefined;
    this.#kubeConfig = copyOf(this.#template);
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
    const kubeConfig = this.#kubeConfig;
    const cancel = this.#clock.after(LONGEST_READING_MS, () =>
      limit.abort(new Error(`reading them took longer than ${LONGEST_READING_MS / 1000} s`)),
    );
    const credentials = unlessAborted(this.#read(kubeConfig, limit.signal), limit.signal).then(
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

  async #read(kubeConfig: KubeConfig, signal: AbortSignal): Promise<Credentials> {
    const cluster = kubeConfig.getCurrentCluster();
    if (!cluster) throw new Error(`The kubeconfig has no cluster for its context "${kubeConfig.currentContext}"`);
    const options: Parameters<KubeConfig["applyToHTTPSOptions"]>[0] & { auth?: string; servername?: string } = {};
    await kubeConfig.applyToHTTPSOptions(options);

    const headers: Record<string, string> = {};
    for (const [name, value] of Object.entries(options.headers ?? {})) {
      // A token file usually ends with a newline, which may not stand in a header.
      if (value !== undefined) headers[name.toLowerCase()] = String(value).trim();
    }
    if (options.auth && headers["authorization"] === undefined) {
      headers["authorization"] = `Basic ${Buffer.from(options.auth).toString("base64")}`;
    }
    const certificate = this.#options.certificate?.();
    if (certificate) {
      delete headers["authorization"];
      Object.assign(options, { ...certificate, passphrase: undefined });
    } else if (this.#plugin) {
      const { token, cert, key } = await this.#plugin.credentials(signal);
      if (token !== undefined) headers["authorization"] = `Bearer ${token}`;
      if (cert !== undefined) Object.assign(options, { cert, key, passphrase: undefined });
    }
    const tls: Credentials["tls"] = {
      ...(options.ca && { ca: options.ca as string | Buffer }),
      ...(options.cert && { cert: options.cert as string | Buffer }),
      ...(options.key && { key: options.key as string | Buffer }),
      ...(options.passphrase && { passphrase: options.passphrase }),
      ...(options.servername && { servername: options.servername }),
      ...(options.rejectUnauthorized !== undefined && { rejectUnauthorized: options.rejectUnauthorized }),
    };
    const hash = createHash("sha256");
    for (const part of [tls.ca, tls.cert, tls.key, tls.passphrase, tls.servername, String(tls.rejectUnauthorized)]) {
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
}

/**
 * The current user's exec plugin, where nothing in the kubeconfig goes before it (client-go: `UpdateTransportConfig`).
 */
function execOf(kubeConfig: KubeConfig): ExecConfig | undefined {
  const user = kubeConfig.getCurrentUser();
  if (!user || user.token || user.username || user.certFile || user.certData) return undefined;
  return (user.exec ?? user.authProvider?.config?.exec) as ExecConfig | undefined;
}

/** A KubeConfig of its own, with authenticators that remember nothing. */
function copyOf(original: KubeConfig): KubeConfig {
  const copy = new KubeConfig();
  copy.loadFromOptions({
    // client-node refuses http: servers unless TLS verification is off; there is none to verify.
    clusters: original.clusters.map((c) => (c.server.startsWith("http:") ? { ...c, skipTLSVerify: true } : c)),
    // Exec plugins are ours (`exec-plugin.ts`): client-node's cannot be ended, nor told that the API server refused
    // their credentials.
    users: original.users.map((user) => (user.exec || user.authProvider?.config?.exec ? withoutExec(user) : user)),
    contexts: original.contexts,
    currentContext: original.currentContext,
  });
  return copy;
}

function withoutExec({ exec: _exec, authProvider: _authProvider, ...user }: User): User {
  return user;
}

/**
 * The kubeconfig at `path`; without one, what kubectl would take ($KUBECONFIG, ~/.kube/config), else the service
 * account of the pod that we run in. `context` replaces the file's current one.
 *
 * @throws KubeConfigError that names the file when it cannot be read or parsed, or lacks the context
 */
export function loadKubeConfig(options: { path?: string | undefined; context?: string | undefined } = {}): KubeConfig {
  const kubeConfig = new KubeConfig();
  const { path, context } = options;
  try {
    if (path === undefined) kubeConfig.loadFromDefault();
    else {
      kubeConfig.loadFromFile(path);
      followTokenFiles(kubeConfig, path);
    }
  } catch (thrown) {
    const file = path === undefined ? "" : ` ${path}`;
    throw new KubeConfigError(`Cannot load the kubeconfig${file}: ${toError(thrown).message}`, { cause: thrown });
  }
  if (context !== undefined) kubeConfig.setCurrentContext(context);
  if (!kubeConfig.getCurrentCluster()) {
    const known = kubeConfig.contexts.map((c) => c.name).join(", ") || "none";
    throw new KubeConfigError(
      `The kubeconfig ${path ?? ""} has no usable context "${kubeConfig.currentContext}" (contexts: ${known})`,
    );
  }
  return kubeConfig;
}

/** client-go's `tokenFile` is unknown to client-node; its file authenticator does the same under another name. */
function followTokenFiles(kubeConfig: KubeConfig, path: string): void {
  const document = parse(readFileSync(path, "utf8")) as {
    users?: { name?: string; user?: { tokenFile?: string } | null }[];
  };
  for (const entry of document.users ?? []) {
    const user = entry.user?.tokenFile ? kubeConfig.users.find((u) => u.name === entry.name) : undefined;
    if (!user) continue;
    Object.assign(user, {
      token: undefined,
      authProvider: { name: "tokenFile", config: { tokenFile: resolve(dirname(path), entry.user!.tokenFile!) } },
    });
  }
}
