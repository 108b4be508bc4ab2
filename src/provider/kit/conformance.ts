/**
 * The conformance kit: named checks of everything that a provider has to keep, each with the reason for its rule. They
 * run against any Provider in the process, and with an HTTP target also look at what only HTTP shows. A check makes its
 * own machines, under labels of its own, and deletes them; nothing else on the backend is touched.
 */
import PQueue from "p-queue";
import { systemClock, type Clock } from "../../util/clock.ts";
import { toError } from "../../util/errors.ts";
import { systemRandom, type Random } from "../../util/random.ts";
import { CAPABILITIES, type Capability } from "../capabilities.ts";
import { ProviderError } from "../errors.ts";
import type { Provider, ProviderInfo } from "../provider.ts";
import { aroundRestart, untilItAnswers } from "./around-restart.ts";
import type { Check } from "./check.ts";
import { BACKEND_RESTART_CHECKS } from "./checks/backend-restarts.ts";
import { CONTAINER_CHECKS } from "./checks/containers.ts";
import { CLAIM_CHECKS } from "./checks/claims.ts";
import { CSI_CHECKS } from "./checks/csi-volumes.ts";
import { DISRUPTION_CHECKS } from "./checks/disruption.ts";
import { DEVICE_CHECKS } from "./checks/devices.ts";
import { EVENT_CHECKS } from "./checks/events.ts";
import { HTTP_CHECKS } from "./checks/http.ts";
import { IMAGE_CHECKS, IMAGE_RESTART_CHECKS } from "./checks/images.ts";
import { LIFECYCLE_CHECKS } from "./checks/lifecycle.ts";
import { LIST_CHECKS } from "./checks/lists.ts";
import { LOG_BYTE_CHECKS } from "./checks/log-bytes.ts";
import { LOG_CHECKS } from "./checks/logs.ts";
import { FORCED_VOLUME_CHECKS } from "./checks/forced-volumes.ts";
import { DISK_RESTART_CHECKS, PERSISTENT_VOLUME_CHECKS } from "./checks/persistent-volumes.ts";
import { SERVICE_CHECKS } from "./checks/services.ts";
import { POD_RANGE_CHECKS, POD_RANGE_RESTART_CHECKS } from "./checks/pod-ranges.ts";
import { PROCESS_CHECKS } from "./checks/processes.ts";
import { RESTART_CHECKS } from "./checks/restarts.ts";
import { SESSION_CHECKS } from "./checks/sessions.ts";
import { STREAM_CHECKS } from "./checks/streams.ts";
import { VOLUME_CHECKS } from "./checks/volumes.ts";
import { CheckContext, Violation } from "./context.ts";
import { describeExchange, type Exchange, ExchangeLog } from "./exchanges.ts";
import type { HttpTarget } from "./http-target.ts";

export const CHECKS: readonly Check[] = [
  ...LIFECYCLE_CHECKS,
  ...LIST_CHECKS,
  ...PROCESS_CHECKS,
  ...CONTAINER_CHECKS,
  ...DEVICE_CHECKS,
  ...CLAIM_CHECKS,
  ...CSI_CHECKS,
  ...DISRUPTION_CHECKS,
  ...RESTART_CHECKS,
  ...VOLUME_CHECKS,
  ...PERSISTENT_VOLUME_CHECKS,
  ...FORCED_VOLUME_CHECKS,
  ...IMAGE_CHECKS,
  ...POD_RANGE_CHECKS,
  ...SERVICE_CHECKS,
  ...LOG_CHECKS,
  ...LOG_BYTE_CHECKS,
  ...EVENT_CHECKS,
  ...STREAM_CHECKS,
  ...SESSION_CHECKS,
  ...HTTP_CHECKS,
  ...DISK_RESTART_CHECKS,
  ...IMAGE_RESTART_CHECKS,
  ...POD_RANGE_RESTART_CHECKS,
  ...BACKEND_RESTART_CHECKS,
];

/**
 * Run first, one after the other. When one of them fails, what needs more than it does would only tell the same again.
 */
const GATES: readonly { name: string; isNeededBy: (name: string) => boolean }[] = [
  { name: "create/returns-the-machine", isNeededBy: (name) => !/absent|^(?:info|capacity|http)\//.test(name) },
  { name: "containers/run-and-print", isNeededBy: (name) => !/absent|^(?:info|capacity|http|create|get)\//.test(name) },
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
  "volumes.block",
  "volumes.csi_block",
  "volumes.csi_growth",
  "volumes.nfs",
  "volumes.host",
  "volumes.host_growth",
  "mount_propagation",
  "host_network",
  "host_pid",
  "host_ipc",
  "resize",
  "host_ports",
  "hosts",
  "dns",
  "apparmor",
  "supplemental_groups_policy",
  "bandwidth",
  "privileged",
  "user_namespace",
  "sysctls",
  "cdi_devices",
  "share_process_namespace",
  "ephemeral_storage_limits",
  "tty",
  "instance_types",
];

export const WITHOUT_RESTART = "needs a way to restart the backend (--restart-command)";

export interface ConformanceOptions {
  /** Has `sh` with echo, sleep, cat, head, trap, read. Backends without images ignore it. */
  image?: string | undefined;
  /** A container that answers on a TCP port with what it gets; without it that check is left out. */
  echo?: { command: string[]; port: number } | undefined;
  http?: HttpTarget | undefined;
  /** Restarts the backend; resolves when it is up again. Without it, nothing is known of what survives a restart. */
  restart?: (() => Promise<void>) | undefined;
  /** Has the backend announce that it takes this machine away. Without it, nothing is known of announcements. */
  disrupt?: ((id: string) => Promise<void>) | undefined;
  /** What was asked of the backend; a failure names its last request. */
  exchanges?: ExchangeLog | undefined;
  /** Leaves the machines of failed checks, to look at. */
  keep?: boolean | undefined;
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
  /** Of a failure: the last request, the script that its container ran, and machines that were kept. */
  request?: string | undefined;
  script?: string | undefined;
  kept?: readonly string[] | undefined;
  /** An earlier failure that has the same cause. */
  sameAs?: string | undefined;
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

  const exchanges = options.exchanges ?? new ExchangeLog();
  const causes = new Map<string, string>();
  const failed = new Set<string>();
  const runOne = async (check: Check, restarted?: () => Promise<void>): Promise<CheckResult> => {
    const startedAt = clock.monotonic();
    const prefix = `conf-${runId}-${CHECKS.indexOf(check)}`;
    const context = new CheckContext({
      provider,
      info,
      clock,
      signal,
      prefix,
      image: options.image ?? "busybox:stable",
      echo: options.echo,
      http: options.http && recording(options.http, { exchanges, prefix, clock }),
      patienceMs: options.patienceMs ?? 60_000,
      restarted,
      disrupt: options.disrupt,
    });
    const gate = GATES.find(({ name, isNeededBy }) => failed.has(name) && isNeededBy(check.name));
    const { cause, ...result }: Outcome =
      gate === undefined
        ? await outcomeOf(check, context)
        : { outcome: "skipped", message: `not run: it needs what ${gate.name} has found to fail` };
    const isFailed = result.outcome === "failed";
    const keeps = isFailed && options.keep === true;
    // Before the clean-up's own requests.
    const last = exchanges.lastOf(prefix);
    if (!keeps) await context.cleanUp();
    const finished: CheckResult = {
      name: check.name,
      ...result,
      ...(isFailed && last !== undefined && { request: describeExchange(last) }),
      ...(isFailed && context.script !== undefined && { script: context.script }),
      ...(keeps && { kept: context.ids }),
      durationMs: Math.round(clock.monotonic() - startedAt),
    };
    if (isFailed) failed.add(check.name);
    if (cause !== undefined) {
      const sameAs = causes.get(cause);
      if (sameAs === undefined) causes.set(cause, check.name);
      else finished.sameAs = sameAs;
    }
    // A check that was broken off by a stop says nothing of the backend.
    if (!signal.aborted) options.onResult?.(finished);
    return finished;
  };

  const unlessStopped = async (work: () => Promise<CheckResult>) => (signal.aborted ? [] : [await work()]);
  const results: CheckResult[] = [];
  const gates = wanted.filter(({ name }) => GATES.some((gate) => gate.name === name));
  for (const gate of gates) results.push(...(await unlessStopped(() => runOne(gate))));
  const plain = wanted.filter((check) => check.needsRestart !== true && !gates.includes(check));
  const turns = new PQueue({ concurrency: 1 });
  const runs = plain.map((check) => {
    const run = () => unlessStopped(() => runOne(check));
    return check.inTurn === true ? turns.add(() => queue.add(run)) : queue.add(run);
  });
  results.push(...(await Promise.all(runs)).flat());
  results.push(...(await afterRestart(wanted, { options, info, provider, clock, signal }, runOne)));
  signal.throwIfAborted();
  return reportOf(info, results, {
    uncheckedCapabilities: UNCHECKED.filter((capability) => info.capabilities.includes(capability)),
  });
}

/** @param uncheckedCapabilities those that the kit could have looked at, if there were a check for them */
export function reportOf(
  info: ProviderInfo,
  results: CheckResult[],
  { uncheckedCapabilities }: { uncheckedCapabilities: readonly Capability[] },
): ConformanceReport {
  const count = (outcome: CheckResult["outcome"]) => results.filter((result) => result.outcome === outcome).length;
  return {
    provider: info.name,
    version: info.version,
    capabilities: info.capabilities,
    unknownCapabilities: info.unknownCapabilities ?? [],
    uncheckedCapabilities,
    results,
    passed: count("passed"),
    failed: count("failed"),
    skipped: count("skipped"),
  };
}

/** Checks that share one restart: all of them are under way when it comes. */
async function afterRestart(
  wanted: readonly Check[],
  {
    options,
    info,
    provider,
    clock,
    signal,
  }: { options: ConformanceOptions; info: ProviderInfo; provider: Provider; clock: Clock; signal: AbortSignal },
  runOne: (check: Check, restarted?: () => Promise<void>) => Promise<CheckResult>,
): Promise<CheckResult[]> {
  const checks = wanted.filter(({ needsRestart }) => needsRestart === true);
  if (signal.aborted) return [];
  const { restart } = options;
  if (restart === undefined) return await Promise.all(checks.map((check) => runOne(check)));
  const isRunnable = ({ needs = [] }: Check) => needs.every((capability) => info.capabilities.includes(capability));
  const restartAndWait = async () => {
    await restart();
    await untilItAnswers(provider, { clock, patienceMs: options.patienceMs ?? 60_000, signal });
  };
  const left = await Promise.all(checks.filter((check) => !isRunnable(check)).map((check) => runOne(check, restart)));
  return [...left, ...(await aroundRestart(checks.filter(isRunnable), restartAndWait, runOne))];
}

/** A target whose requests are remembered as this check's. */
function recording(
  target: HttpTarget,
  { exchanges, prefix, clock }: { exchanges: ExchangeLog; prefix: string; clock: Clock },
): HttpTarget {
  return {
    ...target,
    async request(method, path, options) {
      const startedAt = clock.monotonic();
      const seen = (rest: Partial<Exchange>) =>
        exchanges.record({ method, path, durationMs: clock.monotonic() - startedAt, ...rest }, prefix);
      try {
        const reply = await target.request(method, path, options);
        seen({ status: reply.status, requestId: reply.headers["x-request-id"] });
        return reply;
      } catch (thrown) {
        seen({ error: toError(thrown).message });
        throw thrown;
      }
    },
  };
}

/** What came of a check; the cause is the same text for failures that have one in common. */
type Outcome = Pick<CheckResult, "outcome" | "message"> & { cause?: string | undefined };

async function outcomeOf(check: Check, context: CheckContext): Promise<Outcome> {
  const missing = check.needs?.find((capability) => !context.has(capability));
  if (missing !== undefined) return lacking(missing);
  if (check.needsHttp === true && context.http === undefined) return { outcome: "skipped", message: "needs a URL" };
  if (check.needsRestart === true && !context.canRestart) return { outcome: "skipped", message: WITHOUT_RESTART };
  const reason = await check.skip?.(context);
  if (reason !== undefined) return { outcome: "skipped", message: reason };
  try {
    await check.run(context);
    return { outcome: "passed" };
  } catch (thrown) {
    // A rule that does not hold is its own cause; a call that fails may be why many do not.
    const cause = thrown instanceof ProviderError ? causeOf(thrown) : undefined;
    return { outcome: "failed", message: `${explain(thrown)} ${check.why}`, cause };
  }
}

export const lacking = (capability: Capability) =>
  ({ outcome: "skipped", message: `needs the capability ${capability} (${CAPABILITIES[capability]})` }) as const;

/** Without what differs from call to call. */
function causeOf({ code, message }: ProviderError): string {
  return `${code} ${message.replaceAll(/conf-[a-z0-9-]{1,40}|\d{1,20}/g, "…")}`;
}

function explain(thrown: unknown): string {
  if (thrown instanceof Violation) return thrown.sentence;
  if (thrown instanceof ProviderError)
    return `Expected every call to succeed, but one failed with ${thrown.code}: ${thrown.message}.`;
  return `Expected no error, but there was one: ${thrown instanceof Error ? (thrown.stack ?? thrown.message) : String(thrown)}.`;
}
