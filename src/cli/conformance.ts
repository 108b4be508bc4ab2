/**
 * `vmlet conformance URL`: tells the author of a backend, or of a provider module, which rules of the Machine API it
 * keeps.
 */
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { Command, InvalidArgumentError } from "commander";
import { MachineApiServer, httpTarget, HttpVmProvider, type CredentialFiles } from "../../providers/http-vm/index.ts";
import {
  CHECKS,
  describeExchange,
  ExchangeLog,
  runConformance,
  type CheckResult,
  type ConformanceReport,
} from "../provider/kit/index.ts";
import type { Check } from "../provider/kit/check.ts";
import { ConfigError } from "../config/load.ts";
import { CAPABILITIES } from "../provider/capabilities.ts";
import type { PodConformanceOptions } from "./pod-kit/run.ts";
import { silentLogger } from "../telemetry/logger.ts";
import { toError } from "../util/errors.ts";
import { didYouMean } from "../util/nearest.ts";
import { signalToStop } from "./exit.ts";
import { Progress } from "./progress.ts";
import { explained } from "./explained-provider.ts";
import { toJunit } from "./junit.ts";
import { createModuleProvider } from "./provider-module.ts";

interface Flags {
  module?: string | undefined;
  options?: Record<string, unknown> | undefined;
  tokenFile?: string | undefined;
  caFile?: string | undefined;
  certFile?: string | undefined;
  keyFile?: string | undefined;
  allowPlainHttp?: boolean | undefined;
  image?: string | undefined;
  echoCommand?: string | undefined;
  echoPort?: number | undefined;
  only?: string[] | undefined;
  list?: boolean | undefined;
  trace?: boolean | undefined;
  keep?: boolean | undefined;
  junit?: string | undefined;
  pods?: boolean | undefined;
  restartCommand?: string | undefined;
  disruptCommand?: string | undefined;
  patience: number;
  concurrency: number;
  json?: boolean | undefined;
}

/**
 * Exit codes: 0 every check passed or was skipped, 1 a check failed, 2 the backend could not be reached or a flag is
 * wrong.
 */
export function conformanceCommand(): Command {
  return new Command("conformance")
    .description(
      "check a backend against the rules of the Machine API; it makes and deletes machines of its own, and names what it cannot check",
    )
    .argument("[url]", "https://host:port, http:// on loopback, or unix:///path")
    .option("--module <file>", "a provider module in the place of a backend: it is served on a unix socket meanwhile")
    .option("--options <json>", "what the module's createProvider is given", jsonObject)
    .option("--token-file <file>", "file with the bearer token")
    .option("--ca-file <file>", "CA that signed the backend's certificate; no other is trusted")
    .option("--cert-file <file>", "client certificate")
    .option("--key-file <file>", "client key")
    .option("--allow-plain-http", "http:// beyond loopback, which shows every secret to the network")
    .option("--image <image>", "image with a POSIX sh, for backends that run images (default: busybox:stable)")
    .option(
      "--echo-command <script>",
      "sh script of a container that echoes on --echo-port, for the check of port forwarding",
    )
    .option("--echo-port <port>", "TCP port of --echo-command", wholeNumber)
    .option(
      "--pods",
      "run pods on it instead, as a cluster does: through an agent, which is killed in the middle, and a small API server",
    )
    .option("--only <names>", "only checks whose names begin with one of these, separated by commas", names)
    .option("--restart-command <command>", "shell command that restarts the backend: what survives that is checked too")
    .option(
      "--disrupt-command <command>",
      "shell command after which the backend must announce that it takes machine $VMLET_MACHINE away",
    )
    .option("--list", "print the checks and why each is there, and run none")
    .option("--trace", "print every request and its status on standard error")
    .option("--keep", "leave the machines of failed checks, to look at")
    .option("--junit <file>", "also write the report as JUnit's XML")
    .option("--patience <seconds>", "how long a machine may take to get somewhere", wholeNumber, 60)
    .option("--concurrency <count>", "checks at a time", wholeNumber, 4)
    .option("--json", "print the report as JSON")
    .addHelpText(
      "after",
      "\nExit codes: 0 every check passed or was skipped, 1 a check failed, 2 a flag is wrong or the backend could not be checked.",
    )
    .action(async (url: string | undefined, flags: Flags, command: Command) => {
      if (flags.list === true) print(listOfChecks(flags.only, await checksOf(flags)).join("\n"));
      else if (url !== undefined && flags.module === undefined) process.exitCode = await check(url, flags);
      else if (url === undefined && flags.module !== undefined)
        process.exitCode = await checkModule(flags.module, flags);
      else command.error("error: give either a URL or --module");
    });
}

/** What a check of either kind says of itself. */
interface AnyCheck extends Pick<Check, "name" | "why" | "needs" | "needsHttp" | "needsRestart"> {
  restarts?: "agent" | "backend" | undefined;
}

async function checksOf({ pods }: Flags): Promise<readonly AnyCheck[]> {
  return pods === true ? (await podKit()).podChecks() : CHECKS;
}

/** The container image, which is for clusters, has no small one of its own. */
async function podKit() {
  try {
    return await import("./pod-kit/run.ts");
  } catch (thrown) {
    if ((thrown as NodeJS.ErrnoException).code !== "ERR_MODULE_NOT_FOUND") throw thrown;
    throw new ConfigError("--pods is not in the container image: install the package, or take a checkout of vmlet", {
      cause: thrown,
    });
  }
}

/**
 * Each check, what it needs, and why it is there.
 * @internal
 */
export function listOfChecks(only: readonly string[] = [""], checks: readonly AnyCheck[] = CHECKS): string[] {
  return checks
    .filter(({ name }) => only.some((prefix) => name.startsWith(prefix)))
    .map(({ name, why, needs = [], needsHttp, needsRestart, restarts }) => {
      const isRestart = needsRestart === true || restarts === "backend";
      const all = [...needs, ...(needsHttp ? ["a URL"] : []), ...(isRestart ? ["--restart-command"] : [])];
      return `${name}${all.length > 0 ? ` (needs ${all.join(", ")})` : ""}\n      ${why}`;
    });
}

function jsonObject(text: string): Record<string, unknown> {
  try {
    const value: unknown = JSON.parse(text);
    if (typeof value === "object" && value !== null && !Array.isArray(value)) return value as Record<string, unknown>;
  } catch {
    // Said below.
  }
  throw new InvalidArgumentError("it must be a JSON object.");
}

/** The option may also be given more than once. */
function names(text: string, before: readonly string[] = []): string[] {
  return [...before, ...text.split(",")];
}

function wholeNumber(text: string): number {
  const number = Number(text);
  if (!Number.isInteger(number) || number < 1) throw new InvalidArgumentError("it must be a whole number above 0.");
  return number;
}

/** What the flags cannot mean together; a run that leaves out what was asked for would look like one that passed it. */
function faultOf(flags: Flags, checks: readonly AnyCheck[]): string | undefined {
  const { only = [], echoCommand, echoPort, restartCommand, disruptCommand, module, pods, allowPlainHttp } = flags;
  if (pods === true && disruptCommand !== undefined)
    return "--disrupt-command is for checks of the Machine API, not for --pods";
  if (pods === true && echoCommand !== undefined)
    return "--echo-command is for checks of the Machine API, not for --pods";
  if (pods === true && allowPlainHttp === true)
    return "--allow-plain-http is not for --pods: an agent takes http:// on loopback alone";
  if ((echoCommand === undefined) !== (echoPort === undefined)) return "--echo-command and --echo-port go together";
  if (restartCommand !== undefined && module !== undefined)
    return "--restart-command is for a backend of its own; a module runs in this process";
  const unknown = only.filter((prefix) => !checks.some(({ name }) => name.startsWith(prefix)));
  return unknown.length > 0 ? `--only: no check's name begins with ${unknown.join(" or ")}` : undefined;
}

/** @throws ConfigError when the file is not a provider module */
async function checkModule(file: string, flags: Flags): Promise<number> {
  const provider = await createModuleProvider(resolve(file), flags.options ?? {});
  const server = new MachineApiServer({ provider: explained(provider), logger: silentLogger });
  const folder = await mkdtemp(join(tmpdir(), "vmlet-conformance-"));
  try {
    const { url } = await server.listen({ socketPath: join(folder, "api.sock") });
    return await check(url, flags);
  } finally {
    await server.close();
    await provider.close();
    await rm(folder, { recursive: true, force: true });
  }
}

async function check(url: string, flags: Flags): Promise<number> {
  const checks = await checksOf(flags);
  const fault = faultOf(flags, checks);
  if (fault !== undefined) {
    process.stderr.write(`vmlet conformance: ${fault}\n`);
    return 2;
  }
  const credentials: CredentialFiles = {
    tokenFile: flags.tokenFile,
    caFile: flags.caFile,
    certFile: flags.certFile,
    keyFile: flags.keyFile,
  };
  const target = { url, credentials, ...(flags.allowPlainHttp === true ? { allowPlainHttp: true } : {}) };
  let provider: HttpVmProvider | undefined;
  try {
    const exchanges = new ExchangeLog(
      flags.trace === true ? (exchange) => process.stderr.write(`${describeExchange(exchange)}\n`) : undefined,
    );
    const { restartCommand, disruptCommand } = flags;
    const backend = new HttpVmProvider({ ...target, onExchange: exchanges.record });
    provider = backend;
    const progress = new Progress();
    let done = 0;
    const all = checks.filter(({ name }) => flags.only?.some((prefix) => name.startsWith(prefix)) ?? true).length;
    const report = await progress.of("Checking the backend", (tell) => {
      const common = {
        signal: signalToStop(),
        keep: flags.keep,
        restart: restartCommand === undefined ? undefined : () => runCommand(restartCommand),
        patienceMs: flags.patience * 1000,
        concurrency: flags.concurrency,
        image: flags.image,
        only: flags.only,
        onResult: (result: CheckResult) => {
          tell(`${++done} of ${all}`);
          if (flags.json !== true) progress.above(() => printResult(result));
        },
      };
      return flags.pods === true
        ? onPods(backend, { type: "http-vm", url, ...credentials }, { ...common, trace: flags.trace })
        : runConformance(backend, {
            ...common,
            http: httpTarget(target),
            exchanges,
            disrupt:
              disruptCommand === undefined
                ? undefined
                : (id: string) => runCommand(disruptCommand, { VMLET_MACHINE: id }),
            echo:
              flags.echoCommand === undefined || flags.echoPort === undefined
                ? undefined
                : { command: ["sh", "-c", flags.echoCommand], port: flags.echoPort },
          });
    });
    if (flags.junit !== undefined) await writeFile(flags.junit, toJunit(report));
    print(flags.json === true ? JSON.stringify(report, null, 2) : closingLines(report).join("\n"));
    return report.failed === 0 ? 0 : 1;
  } catch (thrown) {
    process.stderr.write(`vmlet conformance: ${url} could not be checked: ${toError(thrown).message}\n`);
    return 2;
  } finally {
    await provider?.close();
  }
}

async function onPods(
  provider: HttpVmProvider,
  backend: Record<string, unknown>,
  options: Omit<PodConformanceOptions, "provider" | "backend">,
): Promise<ConformanceReport> {
  const { runPodConformance } = await podKit();
  return await runPodConformance({ ...options, provider, backend });
}

const WORDS = { passed: "ok  ", failed: "FAIL" } as const;

function printResult(result: CheckResult): void {
  const lines = linesOf(result);
  if (lines.length > 0) print(lines.join("\n      "));
}

/**
 * What is told of one check. Why a call fails is told once, however many checks need it; one that is left out is told
 * at the end, with all others that are for the same reason, or a failure could not be found between them.
 * @internal
 */
export function linesOf({
  name,
  outcome,
  message,
  request,
  script,
  kept = [],
  sameAs,
  durationMs,
}: CheckResult): string[] {
  if (outcome === "skipped") return [];
  const head = `${WORDS[outcome]}  ${name}${outcome === "passed" ? ` (${durationMs} ms)` : ""}`;
  if (sameAs !== undefined) return [head, `for the same reason as ${sameAs}`];
  return [
    head,
    ...(message === undefined ? [] : [message]),
    ...(request === undefined ? [] : [`last request: ${request}`]),
    ...(script === undefined ? [] : [`its container ran: ${script}`]),
    ...(kept.length === 0 ? [] : [`kept: ${kept.join(", ")}`]),
  ];
}

/** @throws Error when it fails */
async function runCommand(command: string, words: NodeJS.ProcessEnv = {}): Promise<void> {
  const env = { ...process.env, ...words };
  const child = spawn("sh", ["-c", command], { stdio: ["ignore", "ignore", "inherit"], env });
  const [code] = (await once(child, "exit")) as [number | null];
  if (code !== 0) throw new Error(`the command \`${command}\` ended with ${code ?? "a signal"}`);
}

/**
 * The summary of the run. Capabilities that no check has looked at are named, or they would seem to have passed.
 * @internal
 */
export function closingLines(report: ConformanceReport): string[] {
  const { provider, version, passed, failed, skipped, unknownCapabilities, uncheckedCapabilities, results } = report;
  const failures = results.filter(({ outcome }) => outcome === "failed");
  const repeated = results.filter(({ sameAs }) => sameAs !== undefined).length;
  const ofRestarts = results.filter(({ name }) => name.startsWith("backend-restart/"));
  const withoutRestart = ofRestarts.length > 0 && ofRestarts.every(({ outcome }) => outcome === "skipped");
  return [
    ...leftOut(results),
    ...(failures.length > 0 ? [`failed: ${failures.map(({ name }) => name).join(", ")}`] : []),
    ...(repeated > 0 ? [`${repeated} of the failures have a reason that was told before`] : []),
    ...(withoutRestart ? ["not checked: what survives a restart of the backend (--restart-command)"] : []),
    ...unknownCapabilities.map(
      (name) =>
        `declared, but no capability of that name is known: ${name}${didYouMean(name, Object.keys(CAPABILITIES))}`,
    ),
    ...(uncheckedCapabilities.length > 0 ? [`declared, not checked: ${uncheckedCapabilities.join(", ")}`] : []),
    `${provider} ${version}: ${passed} passed, ${failed} failed, ${skipped} skipped`,
  ];
}

/** One line for each reason. */
function leftOut(results: readonly CheckResult[]): string[] {
  const byReason = new Map<string, string[]>();
  for (const { name, outcome, message = "" } of results)
    if (outcome === "skipped") byReason.set(message, [...(byReason.get(message) ?? []), name]);
  return [...byReason].map(
    ([reason, names]) => `skip  ${names.length === 1 ? names[0] : `${names.length} checks`}: ${reason}`,
  );
}

function print(text: string): void {
  process.stdout.write(`${text}\n`);
}
