/**
 * `vmlet conformance URL`: tells the author of a backend, or of a provider module, which rules of the Machine API it
 * keeps.
 */
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { Command, InvalidArgumentError } from "commander";
import { MachineApiServer, httpTarget, HttpVmProvider, type CredentialFiles } from "../../providers/http-vm/index.ts";
import { CHECKS, runConformance, type CheckResult, type ConformanceReport } from "../provider/kit/index.ts";
import { silentLogger } from "../telemetry/logger.ts";
import { toError } from "../util/errors.ts";
import { signalToStop } from "./exit.ts";
import { Progress } from "./progress.ts";
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
    .option("--only <names>", "only checks whose names begin with one of these, separated by commas", names)
    .option("--patience <seconds>", "how long a machine may take to get somewhere", wholeNumber, 60)
    .option("--concurrency <count>", "checks at a time", wholeNumber, 4)
    .option("--json", "print the report as JSON")
    .action(async (url: string | undefined, flags: Flags, command: Command) => {
      if (url !== undefined && flags.module === undefined) process.exitCode = await check(url, flags);
      else if (url === undefined && flags.module !== undefined)
        process.exitCode = await checkModule(flags.module, flags);
      else command.error("error: give either a URL or --module");
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
function faultOf({ only = [], echoCommand, echoPort }: Flags): string | undefined {
  if ((echoCommand === undefined) !== (echoPort === undefined)) return "--echo-command and --echo-port go together";
  const unknown = only.filter((prefix) => !CHECKS.some(({ name }) => name.startsWith(prefix)));
  return unknown.length > 0 ? `--only: no check's name begins with ${unknown.join(" or ")}` : undefined;
}

/** @throws ConfigError when the file is not a provider module */
async function checkModule(file: string, flags: Flags): Promise<number> {
  const provider = await createModuleProvider(resolve(file), flags.options ?? {});
  const server = new MachineApiServer({ provider, logger: silentLogger });
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
  const fault = faultOf(flags);
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
    const backend = new HttpVmProvider(target);
    provider = backend;
    const progress = new Progress();
    let done = 0;
    const all = CHECKS.filter(({ name }) => flags.only?.some((prefix) => name.startsWith(prefix)) ?? true).length;
    const report = await progress.of("Checking the backend", (tell) =>
      runConformance(backend, {
        http: httpTarget(target),
        signal: signalToStop(),
        patienceMs: flags.patience * 1000,
        concurrency: flags.concurrency,
        image: flags.image,
        only: flags.only,
        echo:
          flags.echoCommand === undefined || flags.echoPort === undefined
            ? undefined
            : { command: ["sh", "-c", flags.echoCommand], port: flags.echoPort },
        onResult: (result) => {
          tell(`${++done} of ${all}`);
          if (flags.json !== true) progress.above(() => printResult(result));
        },
      }),
    );
    print(flags.json === true ? JSON.stringify(report, null, 2) : closingLines(report).join("\n"));
    return report.failed === 0 ? 0 : 1;
  } catch (thrown) {
    process.stderr.write(`vmlet conformance: ${url} could not be checked: ${toError(thrown).message}\n`);
    return 2;
  } finally {
    await provider?.close();
  }
}

const WORDS = { passed: "ok  ", failed: "FAIL", skipped: "skip" } as const;

function printResult({ name, outcome, message, durationMs }: CheckResult): void {
  print(
    `${WORDS[outcome]}  ${name}${outcome === "passed" ? ` (${durationMs} ms)` : ""}${message === undefined ? "" : `\n      ${message}`}`,
  );
}

/**
 * The summary of the run. Capabilities that no check has looked at are named, or they would seem to have passed.
 * @internal
 */
export function closingLines(report: ConformanceReport): string[] {
  const { provider, version, passed, failed, skipped, unknownCapabilities, uncheckedCapabilities } = report;
  return [
    ...(unknownCapabilities.length > 0
      ? [`declared, but no capability of that name is known: ${unknownCapabilities.join(", ")}`]
      : []),
    ...(uncheckedCapabilities.length > 0 ? [`declared, not checked: ${uncheckedCapabilities.join(", ")}`] : []),
    `${provider} ${version}: ${passed} passed, ${failed} failed, ${skipped} skipped`,
  ];
}

function print(text: string): void {
  process.stdout.write(`${text}\n`);
}
