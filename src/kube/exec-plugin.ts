/**
 * Credentials from an exec plugin of a kubeconfig (client.authentication.k8s.io), as client-go runs it. A plugin is a
 * foreign program that often asks a cloud: it may hang or fail, and what it gives may be refused. None of it makes it
 * run again and again.
 */
import { z } from "zod";
import { Backoff } from "../queue/backoff.ts";
import type { Clock } from "../util/clock.ts";
import { toError, VmletError } from "../util/errors.ts";
import { runProgram } from "../util/run-program.ts";

/** A user's `exec` in a kubeconfig, as client-node gives it. */
export interface ExecConfig {
  readonly apiVersion?: string;
  readonly command: string;
  readonly args?: readonly string[] | null;
  readonly env?: readonly { name: string; value: string }[] | null;
  readonly provideClusterInfo?: boolean;
  readonly installHint?: string;
}

/** The part of a cluster that a plugin may be told. */
interface ExecCluster {
  readonly server: string;
  readonly caData?: string;
  readonly skipTLSVerify?: boolean;
  readonly tlsServerName?: string;
  readonly proxyUrl?: string;
}

interface ExecCredentials {
  token: string | undefined;
  cert: string | undefined;
  key: string | undefined;
}

interface Held {
  credentials: ExecCredentials;
  /** Wall-clock milliseconds. */
  expiresAt: number;
}

class ExecPluginError extends VmletError {
  readonly code = "EXEC_PLUGIN";
}

const TIMEOUT_MS = 30_000;
const MAX_OUTPUT_BYTES = 1 << 20;
/**
 * After refused credentials the plugin is asked again, but less and less often while the new ones are refused as well.
 */
const REFUSED_MS = { first: 10_000, max: 300_000 };

const reply = z.object({
  kind: z.literal("ExecCredential").optional(),
  apiVersion: z.string().optional(),
  status: z.object({
    token: z.string().optional(),
    clientCertificateData: z.string().optional(),
    clientKeyData: z.string().optional(),
    expirationTimestamp: z.string().nullish(),
  }),
});

export class ExecPlugin {
  readonly #config: ExecConfig;
  readonly #cluster: ExecCluster;
  readonly #clock: Clock;
  readonly #refusals: Backoff;
  #held: Held | undefined;
  #mayForgetAt = 0;

  constructor(config: ExecConfig, cluster: ExecCluster, clock: Clock) {
    this.#config = config;
    this.#cluster = cluster;
    this.#clock = clock;
    this.#refusals = new Backoff({
      initialMs: REFUSED_MS.first,
      maxMs: REFUSED_MS.max,
      jitter: "none",
      resetAfterMs: 2 * REFUSED_MS.max,
      clock,
      random: () => 0,
    });
  }

  /**
   * What the plugin gave, until it expires; then, or when it was refused, what it gives now.
   *
   * @throws ExecPluginError when it cannot be run, fails, takes longer than 30 s or gives nothing usable; the signal's
   *   reason
   */
  async credentials(signal: AbortSignal): Promise<ExecCredentials> {
    if (this.#held === undefined || this.#clock.now() >= this.#held.expiresAt) this.#held = await this.#run(signal);
    return this.#held.credentials;
  }

  /** The API server does not accept them. The plugin is asked again, unless that was of no use a moment ago. */
  refused(): void {
    const now = this.#clock.monotonic();
    if (this.#held === undefined || now < this.#mayForgetAt) return;
    this.#held = undefined;
    this.#mayForgetAt = now + this.#refusals.next();
  }

  async #run(signal: AbortSignal): Promise<Held> {
    const { command, args, env, apiVersion, installHint } = this.#config;
    const info = {
      kind: "ExecCredential",
      apiVersion: apiVersion ?? "client.authentication.k8s.io/v1",
      spec: { interactive: false, ...(this.#config.provideClusterInfo && { cluster: clusterInfo(this.#cluster) }) },
    };
    try {
      const output = await runProgram(
        {
          file: command,
          args: args ?? [],
          addedEnv: {
            ...Object.fromEntries((env ?? []).map(({ name, value }) => [name, value])),
            KUBERNETES_EXEC_INFO: JSON.stringify(info),
          },
        },
        { input: "", signal, timeoutMs: TIMEOUT_MS, maxOutputBytes: MAX_OUTPUT_BYTES },
      );
      return parseReply(output, apiVersion);
    } catch (thrown) {
      signal.throwIfAborted();
      const hint = (thrown as { code?: unknown }).code === "ENOENT" && installHint ? `; ${installHint.trim()}` : "";
      throw new ExecPluginError(`the kubeconfig's exec plugin ${command} failed: ${toError(thrown).message}${hint}`, {
        cause: thrown,
        retryable: true,
      });
    }
  }
}

/** The output holds credentials, so an error never quotes it. */
function parseReply(output: string, apiVersion: string | undefined): Held {
  let json: unknown;
  try {
    json = JSON.parse(output);
  } catch {
    throw new Error("it did not answer with JSON");
  }
  const parsed = reply.safeParse(json);
  if (!parsed.success) {
    const [issue] = parsed.error.issues;
    throw new Error(`its answer is not an ExecCredential: ${issue?.path.join(".")}: ${issue?.message}`);
  }
  const { status, apiVersion: given } = parsed.data;
  if (given !== undefined && apiVersion !== undefined && given !== apiVersion)
    throw new Error(`it answered with ${given}, but the kubeconfig says ${apiVersion}`);
  const { token, clientCertificateData: cert, clientKeyData: key, expirationTimestamp } = status;
  if (!token && !cert && !key) throw new Error("it gave neither a token nor a certificate");
  if (!cert !== !key) throw new Error("it gave only one of certificate and key");
  const expiresAt = expirationTimestamp ? Date.parse(expirationTimestamp) : Infinity;
  if (Number.isNaN(expiresAt)) throw new Error("its expirationTimestamp is not a time");
  return { credentials: { token: token || undefined, cert: cert || undefined, key: key || undefined }, expiresAt };
}

function clusterInfo({ server, caData, skipTLSVerify, tlsServerName, proxyUrl }: ExecCluster) {
  return {
    server,
    ...(caData && { "certificate-authority-data": caData }),
    ...(skipTLSVerify && { "insecure-skip-tls-verify": true }),
    ...(tlsServerName && { "tls-server-name": tlsServerName }),
    ...(proxyUrl && { "proxy-url": proxyUrl }),
  };
}
