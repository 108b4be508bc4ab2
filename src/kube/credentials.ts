import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { dirname, resolve } from "node:path";
import { KubeConfig } from "@kubernetes/client-node";
import { parse } from "yaml";
import type { Clock } from "../util/clock.ts";
import { toError, VmletError } from "../util/errors.ts";
import { trimEnd } from "../util/text.ts";
import type { CertificatePair } from "./certificates.ts";

/**
 * Where the API server is and how to prove who we are. Files are read again every few seconds, so rotated certificates
 * and tokens are picked up without a restart; exec plugins and OIDC are client-node's.
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
  /** Changes exactly when connections have to be made anew. */
  readonly tlsKey: string;
}

/** The kubeconfig cannot be used: its owner has to change something. */
export class KubeConfigError extends VmletError {
  readonly code = "KUBECONFIG";
}

/** How long credentials are used before the files are looked at again. */
const FRESH_MS = 5_000;

export class CredentialSource {
  readonly #template: KubeConfig;
  readonly #clock: Clock;
  readonly #certificate: (() => CertificatePair | undefined) | undefined;
  #kubeConfig: KubeConfig;
  #cached: { credentials: Credentials; readAt: number } | undefined;
  #reading: Promise<Credentials> | undefined;

  /** @param certificate replaces whatever the kubeconfig says of who we are, as soon as there is one */
  constructor(kubeConfig: KubeConfig, clock: Clock, certificate?: () => CertificatePair | undefined) {
    this.#certificate = certificate;
    this.#template = kubeConfig;
    this.#kubeConfig = copyOf(kubeConfig);
    this.#clock = clock;
  }

  /** @throws Error when there is no current cluster, a file cannot be read, or an exec plugin fails */
  async get(): Promise<Credentials> {
    if (this.#cached && this.#clock.monotonic() - this.#cached.readAt < FRESH_MS) return this.#cached.credentials;
    this.#reading ??= this.#read().finally(() => {
      this.#reading = undefined;
    });
    return this.#reading;
  }

  /** Forgets everything, also what client-node's authenticators hold (a token file's content, an exec plugin's reply). */
  invalidate(): void {
    this.#cached = undefined;
    this.#kubeConfig = copyOf(this.#template);
  }

  async #read(): Promise<Credentials> {
    const cluster = this.#kubeConfig.getCurrentCluster();
    if (!cluster) throw new Error(`The kubeconfig has no cluster for its context "${this.#kubeConfig.currentContext}"`);
    const options: Parameters<KubeConfig["applyToHTTPSOptions"]>[0] & { auth?: string; servername?: string } = {};
    await this.#kubeConfig.applyToHTTPSOptions(options);

    const headers: Record<string, string> = {};
    for (const [name, value] of Object.entries(options.headers ?? {})) {
      // A token file usually ends with a newline, which may not stand in a header.
      if (value !== undefined) headers[name.toLowerCase()] = String(value).trim();
    }
    if (options.auth && headers["authorization"] === undefined) {
      headers["authorization"] = `Basic ${Buffer.from(options.auth).toString("base64")}`;
    }
    const certificate = this.#certificate?.();
    if (certificate) {
      delete headers["authorization"];
      Object.assign(options, { ...certificate, passphrase: undefined });
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
    const credentials: Credentials = {
      server: trimEnd(cluster.server, "/"),
      proxyUrl: cluster.proxyUrl,
      headers,
      tls,
      tlsKey: hash.digest("hex"),
    };
    this.#cached = { credentials, readAt: this.#clock.monotonic() };
    return credentials;
  }
}

/** A KubeConfig of its own, with authenticators that remember nothing. */
function copyOf(original: KubeConfig): KubeConfig {
  const copy = new KubeConfig();
  copy.loadFromOptions({
    // client-node refuses http: servers unless TLS verification is off; there is none to verify.
    clusters: original.clusters.map((c) => (c.server.startsWith("http:") ? { ...c, skipTLSVerify: true } : c)),
    users: original.users,
    contexts: original.contexts,
    currentContext: original.currentContext,
  });
  return copy;
}

/**
 * The kubeconfig at `path`; without one, what kubectl would take ($KUBECONFIG, ~/.kube/config), else the service account
 * of the pod that we run in. `context` replaces the file's current one.
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
  } catch (error) {
    const file = path === undefined ? "" : ` ${path}`;
    throw new KubeConfigError(`Cannot load the kubeconfig${file}: ${toError(error).message}`, { cause: error });
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
