/**
 * The conformance kit: named checks of everything that a provider has to keep, each with the reason for its rule. They
 * run against any Provider in the process, and with an HTTP target also look at what only HTTP shows. A check makes its
 * own machines, under labels of its own, and deletes them; nothing else on the backend is touched.
 */
import PQueue from "p-queue";
import { systemClock, type Clock } from "../../util/clock.ts";
import { systemRandom, type Random } from "../../util/random.ts";
import { CAPABILITIES, type Capability } from "../capabilities.ts";
import { ProviderError } from "../errors.ts";
import type { Provider } from "../provider.ts";
import type { Check } from "./check.ts";
import { CONTAINER_CHECKS } from "./checks/containers.ts";
import { EVENT_CHECKS } from "./checks/events.ts";
import { HTTP_CHECKS } from "./checks/http.ts";
import { LIFECYCLE_CHECKS } from "./checks/lifecycle.ts";
import { LIST_CHECKS } from "./checks/lists.ts";
import { LOG_BYTE_CHECKS } from "./checks/log-bytes.ts";
import { LOG_CHECKS } from "./checks/logs.ts";
import { PROCESS_CHECKS } from "./checks/processes.ts";
import { RESTART_CHECKS } from "./checks/restarts.ts";
import { SESSION_CHECKS } from "./checks/sessions.ts";
import { STREAM_CHECKS } from "./checks/streams.ts";
import { VOLUME_CHECKS } from "./checks/volumes.ts";
import { CheckContext, Violation } from "./context.ts";
import type { HttpTarget } from "./http-target.ts";

export const CHECKS: readonly Check[] = [
  ...LIFECYCLE_CHECKS,
  ...LIST_CHECKS,
  ...PROCESS_CHECKS,
  ...CONTAINER_CHECKS,
  ...RESTART_CHECKS,
  ...VOLUME_CHECKS,
  ...LOG_CHECKS,
  ...LOG_BYTE_CHECKS,
  ...EVENT_CHECKS,
  ...STREAM_CHECKS,
  ...SESSION_CHECKS,
  ...HTTP_CHECKS,
];

/**
 * Capabilities without a check: to see them at work takes more of the image, the host or the network than a kit can ask
 * for.
 * @internal
 */
export const UNCHECKED: readonly Capability[] = [
  "registry_auth",
  "volumes.empty_dir.size_limit",
  "volumes.image",
  "volumes.host_path",
  "resize",
  "host_ports",
  "hosts",
  "dns",
  "privileged",
  "user_namespace",
  "sysctls",
  "share_process_namespace",
  "ephemeral_storage_limits",
  "tty",
  "instance_types",
];

export interface ConformanceOptions {
  /** Has `sh` with echo, sleep, cat, head, trap, read. Backends without images ignore it. */
  image?: string | undefined;
  /** A container that answers on a TCP port with what it gets; without it that check is left out. */
  echo?: { command: string[]; port: number } | undefined;
  http?: HttpTarget | undefined;
  /** Only checks whose name begins with one of these. */
  only?: readonly string[] | undefined;
  /** How long a machine may take to get somewhere, in milliseconds. Default 60,000. */
  patienceMs?: number | undefined;
  /** Checks at a time. Default 4. */
  concurrency?: number | undefined;
  clock?: Clock | undefined;
  random?: Random | undefined;
  signal?: AbortSignal | undefined;
  onResult?: ((result: CheckResult) => void) | undefined;
}

export interface CheckResult {
  name: string;
  outcome: "passed" | "failed" | "skipped";
  /** What was expected, what came and why it matters; or why the check was skipped. */
  message?: string;
  durationMs: number;
}

export interface ConformanceReport {
  provider: string;
  version: string;
  capabilities: readonly string[];
  /** Declared, but names of no capability: misspelt, or newer than the kit. */
  unknownCapabilities: readonly string[];
  /** Declared, and of those that the kit has no check for. */
  uncheckedCapabilities: readonly Capability[];
  results: CheckResult[];
  passed: number;
  failed: number;
  skipped: number;
}

/**
 * Runs all checks.
 * @throws ProviderError when the provider does not even say what it is; the signal's reason, tidied up after
 */
export async function runConformance(provider: Provider, options: ConformanceOptions = {}): Promise<ConformanceReport> {
  const clock = options.clock ?? systemClock;
  const random = options.random ?? systemRandom;
  const signal = options.signal ?? new AbortController().signal;
  const info = await provider.getInfo({ signal });
  const runId = Math.floor(random() * 2 ** 48).toString(36);
  const queue = new PQueue({ concurrency: options.concurrency ?? 4 });
  const wanted = CHECKS.filter(
    ({ name }) => options.only === undefined || options.only.some((prefix) => name.startsWith(prefix)),
  );

  const runOne = async (check: Check, index: number): Promise<CheckResult> => {
    const startedAt = clock.monotonic();
    const context = new CheckContext({
      provider,
      info,
      clock,
      signal,
      prefix: `conf-${runId}-${index}`,
      image: options.image ?? "busybox:stable",
      echo: options.echo,
      http: options.http,
      patienceMs: options.patienceMs ?? 60_000,
    });
    const result = await outcomeOf(check, context);
    await context.cleanUp();
    const finished = { name: check.name, ...result, durationMs: Math.round(clock.monotonic() - startedAt) };
    // A check that was broken off by a stop says nothing of the backend.
    if (!signal.aborted) options.onResult?.(finished);
    return finished;
  };

  const runs = wanted.map((check, index) =>
    queue.add(async () => (signal.aborted ? [] : [await runOne(check, index)])),
  );
  const results = (await Promise.all(runs)).flat();
  signal.throwIfAborted();
  const count = (outcome: CheckResult["outcome"]) => results.filter((result) => result.outcome === outcome).length;
  return {
    provider: info.name,
    version: info.version,
    capabilities: info.capabilities,
    unknownCapabilities: info.unknownCapabilities ?? [],
    uncheckedCapabilities: UNCHECKED.filter((capability) => info.capabilities.includes(capability)),
    results,
    passed: count("passed"),
    failed: count("failed"),
    skipped: count("skipped"),
  };
}

async function outcomeOf(check: Check, context: CheckContext): Promise<Pick<CheckResult, "outcome" | "message">> {
  const missing = check.needs?.find((capability) => !context.has(capability));
  if (missing !== undefined)
    return { outcome: "skipped", message: `needs the capability ${missing} (${CAPABILITIES[missing]})` };
  if (check.needsHttp === true && context.http === undefined) return { outcome: "skipped", message: "needs a URL" };
  const reason = check.skip?.(context);
  if (reason !== undefined) return { outcome: "skipped", message: reason };
  try {
    await check.run(context);
    return { outcome: "passed" };
  } catch (thrown) {
    return { outcome: "failed", message: `${explain(thrown)} ${check.why}` };
  }
}

function explain(thrown: unknown): string {
  if (thrown instanceof Violation) return `Expected ${thrown.expected}, but ${thrown.came}.`;
  if (thrown instanceof ProviderError)
    return `Expected every call to succeed, but one failed with ${thrown.code}: ${thrown.message}.`;
  return `Expected no error, but there was one: ${thrown instanceof Error ? (thrown.stack ?? thrown.message) : String(thrown)}.`;
}
