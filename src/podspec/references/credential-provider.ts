/**
 * Image credentials from exec plugins: kubelet's `CredentialProviderConfig` (kubelet.config.k8s.io/v1) and the protocol
 * `credentialprovider.kubelet.k8s.io/v1`, so that a cloud's own plugin works unchanged. A plugin that fails costs a log
 * line and its credentials, never the pod: the image may be public.
 */
import { join } from "node:path";
import { z } from "zod";
import { type CredentialProviderConfig, durationMs, PLUGIN_PROTOCOL } from "../../config/credential-providers.ts";
import { allContainersOf } from "../../kube/pod.ts";
import type { Pod } from "../../kube/wire.ts";
import type { RegistryAuth } from "../../provider/machine.ts";
import { registryHostMatches } from "../../provider/registry-hosts.ts";
import type { Logger } from "../../telemetry/logger.ts";
import { unlessAborted } from "../../util/abort.ts";
import type { Clock } from "../../util/clock.ts";
import { runProgram } from "../../util/run-program.ts";
import { normalizeImage } from "../image-name.ts";
import type { TokenWish, Lookup } from "../types.ts";
import { normalizeRegistry } from "../../provider/docker-config.ts";

/** Credentials for images that come from elsewhere than the pod's secrets. */
export interface ImageCredentials {
  /** True when there may be credentials for an image of this pod. */
  concerns(pod: Pod): boolean;
  /** Never fails: credentials that cannot be had are logged and left out. */
  forPod(pod: Pod, signal: AbortSignal): Promise<RegistryAuth[]>;
}

const PLUGIN_TIMEOUT_MS = 60_000;
const MAX_OUTPUT_BYTES = 1 << 20;
const TOKEN_SECONDS = 600;

type ProviderConfig = CredentialProviderConfig["providers"][number];

const pluginReply = z.object({
  kind: z.literal("CredentialProviderResponse"),
  apiVersion: z.literal(PLUGIN_PROTOCOL),
  cacheKeyType: z.enum(["Image", "Registry", "Global"]),
  cacheDuration: durationMs.optional(),
  auth: z.record(z.string(), z.object({ username: z.string(), password: z.string() })).nullish(),
});

/** Runs a plugin with a request on its standard input. @throws Error when it cannot be run, fails, or takes too long */
export type RunPlugin = (
  plugin: { file: string; args: readonly string[]; env: Readonly<Record<string, string>> },
  input: string,
  signal: AbortSignal,
) => Promise<string>;

interface ExecCredentialsOptions {
  config: CredentialProviderConfig;
  /** The folder that holds the plugins. */
  binDir: string;
  /** What every plugin inherits, before its own `env`. */
  environment: Readonly<Record<string, string>>;
  /** For plugins that want the pod's own identity. Each token is used once. */
  tokens: {
    get(pod: Pod, wishes: readonly TokenWish[], signal: AbortSignal): Promise<ReadonlyMap<string, Lookup<string>>>;
  };
  clock: Clock;
  logger: Logger;
  run?: RunPlugin | undefined;
}

interface Cached {
  auth: RegistryAuth[];
  until: number;
}

/** A run of a plugin that some wait for; it ends when the last of them gives up. */
interface Flight {
  auth: Promise<RegistryAuth[]>;
  waiting: number;
  abandoned: AbortController;
}

/** A pod's identity, for plugins that want it. */
interface Identity {
  /** For which images the credentials that it gave may be used again. */
  scope: string;
  token: string | undefined;
}

const MAX_CACHED = 5_000;

export class ExecCredentials implements ImageCredentials {
  readonly #options: ExecCredentialsOptions;
  /** Oldest first. */
  readonly #cache = new Map<string, Cached>();
  readonly #flights = new Map<string, Flight>();

  constructor(options: ExecCredentialsOptions) {
    this.#options = options;
  }

  concerns(pod: Pod): boolean {
    return this.#matches(pod).length > 0;
  }

  async forPod(pod: Pod, signal: AbortSignal): Promise<RegistryAuth[]> {
    const found: RegistryAuth[] = [];
    // One after the other: a plugin's first answer often serves the next image from the cache.
    for (const { provider, image } of this.#matches(pod)) {
      try {
        found.push(...(await this.#credentials(provider, image, pod, signal)));
      } catch (thrown) {
        signal.throwIfAborted();
        this.#options.logger.warn({ plugin: provider.name, image, err: thrown }, "Credential provider plugin failed");
      }
    }
    return [...new Map(found.map((auth) => [`${auth.registry}\n${auth.username}`, auth])).values()];
  }

  /** The plugins that are responsible for the pod's images. */
  #matches(pod: Pod): { provider: ProviderConfig; image: string }[] {
    const images = new Set(allContainersOf(pod).map((container) => normalizeImage(container.image ?? "")));
    return this.#options.config.providers.flatMap((provider) =>
      [...images]
        .filter((image) => provider.matchImages.some((glob) => matchesImage(glob, image)))
        .map((image) => ({ provider, image })),
    );
  }

  async #credentials(provider: ProviderConfig, image: string, pod: Pod, signal: AbortSignal): Promise<RegistryAuth[]> {
    const { clock } = this.#options;
    const identity = await this.#identity(provider, pod, signal);
    for (const key of [`Image ${image}`, `Registry ${registryOf(image)}`, "Global"]) {
      const cached = this.#cache.get(cacheKey(provider, identity.scope, key));
      if (cached !== undefined && clock.monotonic() < cached.until) return cached.auth;
    }
    const key = cacheKey(provider, identity.scope, `Image ${image}`);
    let flight = this.#flights.get(key);
    if (flight === undefined) {
      const abandoned = new AbortController();
      flight = { auth: this.#ask(provider, image, identity, abandoned.signal), waiting: 0, abandoned };
      this.#flights.set(key, flight);
    }
    flight.waiting++;
    try {
      return await unlessAborted(flight.auth, signal);
    } finally {
      if (--flight.waiting === 0) {
        flight.abandoned.abort();
        this.#flights.delete(key);
      }
    }
  }

  /**
   * Who the pod is. The account is known by its UID, which the token names, so that one that is made again under the
   * same name inherits nothing.
   */
  async #identity({ tokenAttributes }: ProviderConfig, pod: Pod, signal: AbortSignal): Promise<Identity> {
    if (tokenAttributes === undefined) return { scope: "", token: undefined };
    const wish = { audience: tokenAttributes.serviceAccountTokenAudience, expirationSeconds: TOKEN_SECONDS };
    const [token] = (await this.#options.tokens.get(pod, [wish], signal)).values();
    if (token?.kind !== "found")
      throw new Error(`no service-account token for it: ${token?.kind === "unknown" ? token.message : "not issued"}`);
    const { namespace = "", uid = "" } = pod.metadata ?? {};
    const accountUid = serviceAccountUid(token.object);
    const isShared = tokenAttributes.cacheType === "ServiceAccount" && accountUid !== undefined;
    const account = [namespace, pod.spec?.serviceAccountName ?? "default", accountUid ?? ""];
    return { scope: JSON.stringify(isShared ? account : [...account, uid]), token: token.object };
  }

  /** Runs the plugin, and keeps what it says for as long as it says. */
  async #ask(
    provider: ProviderConfig,
    image: string,
    { scope, token }: Identity,
    signal: AbortSignal,
  ): Promise<RegistryAuth[]> {
    const { clock, binDir, environment, run = runPlugin } = this.#options;
    const request: Record<string, unknown> = { kind: "CredentialProviderRequest", apiVersion: PLUGIN_PROTOCOL, image };
    if (token !== undefined) {
      request["serviceAccountToken"] = token;
      request["serviceAccountAnnotations"] = {};
    }
    const env = { ...environment, ...Object.fromEntries(provider.env.map(({ name, value }) => [name, value])) };
    const output = await run(
      { file: join(binDir, provider.name), args: provider.args, env },
      JSON.stringify(request),
      signal,
    );
    const reply = parseReply(output);
    const isEchoed = Object.values(reply.auth ?? {}).some(({ password }) => password === token);
    if (isEchoed && provider.tokenAttributes?.cacheType !== "Token")
      throw new Error("it returned the service-account token as the password, which needs cacheType: Token");
    const auth = Object.entries(reply.auth ?? {}).map(([location, { username, password }]) => ({
      registry: normalizeRegistry(location),
      username,
      password,
    }));
    const subjects = { Image: `Image ${image}`, Registry: `Registry ${registryOf(image)}`, Global: "Global" };
    const lifeMs = reply.cacheDuration ?? provider.defaultCacheDuration;
    this.#forgetExpired();
    if (lifeMs > 0) {
      const key = cacheKey(provider, scope, subjects[reply.cacheKeyType]);
      this.#cache.set(key, { auth, until: clock.monotonic() + lifeMs });
    }
    return auth;
  }

  #forgetExpired(): void {
    const now = this.#options.clock.monotonic();
    for (const [key, { until }] of this.#cache)
      if (until <= now || this.#cache.size >= MAX_CACHED) this.#cache.delete(key);
  }
}

function cacheKey(provider: ProviderConfig, scope: string, subject: string): string {
  return JSON.stringify([provider.name, scope, subject]);
}

function registryOf(image: string): string {
  return image.slice(0, image.indexOf("/"));
}

/**
 * The UID in a service-account token's claims; undefined for a token of another make. The API server itself issued it a
 * moment ago.
 */
function serviceAccountUid(token: string): string | undefined {
  try {
    const claims: unknown = JSON.parse(Buffer.from(token.split(".")[1] ?? "", "base64url").toString("utf8"));
    const { "kubernetes.io": bound } = claims as { "kubernetes.io"?: { serviceaccount?: { uid?: unknown } } };
    const uid = bound?.serviceaccount?.uid;
    return typeof uid === "string" && uid !== "" ? uid : undefined;
  } catch {
    return undefined;
  }
}

/** The output may hold credentials, so an error never repeats it. */
function parseReply(output: string): z.infer<typeof pluginReply> {
  let json: unknown;
  try {
    json = JSON.parse(output);
  } catch {
    throw new Error("it did not answer with JSON");
  }
  const reply = pluginReply.safeParse(json);
  if (reply.success) return reply.data;
  const issue = reply.error.issues[0];
  throw new Error(
    `its answer is not a CredentialProviderResponse: ${issue?.path.join(".") ?? ""}: ${issue?.message ?? ""}`,
  );
}

/**
 * Whether an image, in its full form, falls under a `matchImages` entry (pkg/credentialprovider `URLsMatch`): as many
 * parts of the host, `*` within a part, the same port, and the path as a prefix.
 * @internal
 */
export function matchesImage(glob: string, image: string): boolean {
  const pattern = splitLocation(glob.replace(/^https?:\/\//, ""));
  const target = splitLocation(image);
  return target.path.startsWith(pattern.path) && registryHostMatches(pattern.host, target.host);
}

function splitLocation(location: string): { host: string; path: string } {
  const slash = location.indexOf("/");
  return slash === -1 ? { host: location, path: "" } : { host: location.slice(0, slash), path: location.slice(slash) };
}

/**
 * Runs the plugin as a child process; kills it after a minute or when the signal aborts.
 * @internal
 */
export const runPlugin: RunPlugin = (plugin, input, signal) =>
  runProgram(plugin, { input, signal, timeoutMs: PLUGIN_TIMEOUT_MS, maxOutputBytes: MAX_OUTPUT_BYTES });
