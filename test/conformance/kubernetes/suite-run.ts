/** Runs specs of the suite, each process of it with a portion of them, and tells what became of them. */
import { existsSync } from "node:fs";
import { copyFile, readFile } from "node:fs/promises";
import { join } from "node:path";
import PQueue from "p-queue";
import { kubectlBinary } from "../../e2e/harness/binaries.ts";
import { buildKubernetesSuite, kubernetesVersion } from "../../e2e/harness/build.ts";
import { runCommand } from "../../e2e/harness/exec.ts";
import type { SuiteEnvironment } from "./environment.ts";
import type { NodeSsh } from "./node-ssh.ts";
import { resultsOf, summary, type Result } from "./report.ts";
import { focusOn, isSerial, isSlow, portions, type GinkgoReport, type HostFacts, type Spec } from "./specs.ts";

/** Some at once; what is serial comes last and alone. */
export async function runSpecs(
  specs: readonly Spec[],
  workers: number,
  options: Omit<SuiteRun, "name" | "specs" | "kubectl"> & {
    /** After each process of the suite, with what it was given. */
    ended?: ((specs: readonly Spec[], report: GinkgoReport) => Promise<void>) | undefined;
  },
): Promise<GinkgoReport[]> {
  const { signal, ended, ...rest } = options;
  const shared = { ...rest, kubectl: await namedKubectl(rest.reportDir) };
  const run = async (name: string, ofRun: readonly Spec[]) => {
    const report = await runSuite({ ...shared, signal, name, specs: ofRun });
    await ended?.(ofRun, report);
    return report;
  };
  const together = specs.filter((spec) => !isSerial(spec));
  // The slow ones mostly wait: they have workers of their own, beside those that keep the machine busy.
  const kinds = { slow: together.filter(isSlow), suite: together.filter((spec) => !isSlow(spec)) };
  const running = Object.entries(kinds).flatMap(([kind, ofKind]) => {
    const queue = new PQueue({ concurrency: workers });
    return portions(ofKind, workers).map((portion, index) =>
      queue.add(() => (signal.aborted ? [] : run(`${kind}-${index + 1}`, portion))),
    );
  });
  const reports = await Promise.all(running);
  const alone = specs.filter(isSerial);
  // One by one: they take long, and what has ended is kept.
  for (const [index, spec] of alone.entries())
    if (!signal.aborted) reports.push(await run(`serial-${index + 1}`, [spec]));
  return reports;
}

export async function listImages(repositories: string): Promise<string[]> {
  const { stdout } = await runCommand(await buildKubernetesSuite(), ["--list-images"], {
    env: { ...process.env, KUBE_TEST_REPO_LIST: repositories },
  });
  return stdout.split("\n").filter((line) => line !== "");
}

export interface SuiteRun {
  environment: SuiteEnvironment;
  host: HostFacts;
  repositories: string;
  reportDir: string;
  /** Path of the program. */
  kubectl: string;
  /** Of its log and its report. */
  name: string;
  specs: readonly Spec[];
  /** How often a test may be tried. */
  attempts: string;
  /** More of the program. */
  flags?: readonly string[] | undefined;
  /** How tests reach the nodes' hosts. Absent: they do not, and such tests skip themselves. */
  ssh?: NodeSsh | undefined;
  signal: AbortSignal;
}

/** One process of the suite, one spec after another. */
async function runSuite({
  environment,
  host,
  repositories,
  reportDir,
  kubectl,
  name,
  specs,
  attempts: maxAttempts,
  flags = [],
  ssh,
  signal,
}: SuiteRun): Promise<GinkgoReport> {
  const { sandbox, adminKubeconfig } = environment.cluster;
  const report = join(reportDir, `${name}.json`);
  const child = sandbox.spawn(
    name,
    await buildKubernetesSuite(),
    [
      `--kubeconfig=${adminKubeconfig}`,
      `--kubectl-path=${kubectl}`,
      `--provider=${ssh?.provider ?? "skeleton"}`,
      "--num-nodes=2",
      "--disable-log-dump",
      "--minStartupPods=0",
      `--ginkgo.focus=${focusOn(specs)}`,
      "--ginkgo.no-color",
      "--ginkgo.v",
      "--ginkgo.timeout=12h",
      "--ginkgo.grace-period=2m",
      `--ginkgo.flake-attempts=${maxAttempts}`,
      `--ginkgo.json-report=${report}`,
      ...flags,
    ],
    { env: { ...process.env, ...ssh?.env, KUBE_TEST_REPO_LIST: repositories } },
  );
  const interrupt = () => void child.kill("SIGINT");
  signal.addEventListener("abort", interrupt);
  await child.exited;
  signal.removeEventListener("abort", interrupt);
  const done = existsSync(report) ? await readReport(report) : [];
  console.log(
    `${name}: ${specs.length} tests, ${Object.entries(summary(resultsOf(specs, [done], host, kubernetesVersion)))
      .map(([key, n]) => `${n} ${key}`)
      .join(", ")}`,
  );
  for (const { LeafNodeText: text, NumAttempts: attempts } of done.flatMap((suite) => suite.SpecReports ?? []))
    if (attempts > 1) console.log(`${name}: attempt ${attempts} of "${text}"`);
  return done;
}

/** By its usual name: a test copies it into a pod, and calls it there. */
async function namedKubectl(dir: string): Promise<string> {
  const path = join(dir, "kubectl");
  await copyFile(await kubectlBinary(), path);
  return path;
}

export async function readReport(file: string): Promise<GinkgoReport> {
  return JSON.parse(await readFile(file, "utf8")) as GinkgoReport;
}

export function print(results: readonly Result[]): void {
  for (const outcome of ["passed", "left out", "failed"] as const)
    for (const result of results.filter((each) => each.outcome === outcome))
      console.log(
        `${outcome}\t${result.seconds} s\t${result.name}${result.reason === "" ? "" : `\n\t${result.reason}`}`,
      );
  console.log(
    Object.entries(summary(results))
      .map(([key, n]) => `${n} ${key}`)
      .join(", "),
  );
}
