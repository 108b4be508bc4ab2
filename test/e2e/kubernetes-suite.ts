/** Runs specs of Kubernetes' own e2e suite and reads its report. */
import { mkdir, readFile } from "node:fs/promises";
import { join } from "node:path";
import { runCommand, tryCommand } from "./harness/exec.ts";

export interface SpecResult {
  name: string;
  state: string;
  seconds: number;
  attempts: number;
  /** What failed and where; empty when nothing did. */
  failure: string;
}

interface GinkgoSpec {
  ContainerHierarchyTexts: string[] | null;
  LeafNodeText: string;
  LeafNodeType: string;
  State: string;
  /** Nanoseconds. */
  RunTime: number;
  NumAttempts: number;
  Failure?: { Message?: string; Location?: { FileName: string; LineNumber: number } };
}

export interface SuiteOptions {
  binary: string;
  kubeconfig: string;
  kubectl: string;
  /** Names of specs, without their labels in brackets at the end. */
  specs: readonly string[];
  /** For the report and the log. */
  dir: string;
  timeoutMinutes: number;
}

/** @returns a result for every spec that ran. @throws Error with the end of the output when the suite broke off */
export async function runSuite(options: SuiteOptions): Promise<SpecResult[]> {
  await mkdir(options.dir, { recursive: true });
  const report = join(options.dir, "report.json");
  const names = options.specs.map((name) => name.replaceAll(/[.*+?^${}()|[\]\\]/g, String.raw`\$&`)).join("|");
  // To the end of the name: others begin with the same words, and some of them take minutes.
  const focus = String.raw`(?:${names})(?: \[[^\]]+\])*$`;
  const { code, stdout, stderr } = await tryCommand(
    options.binary,
    [
      `--kubeconfig=${options.kubeconfig}`,
      `--kubectl-path=${options.kubectl}`,
      "--provider=skeleton",
      "--allowed-not-ready-nodes=-1",
      "--minStartupPods=0",
      "--disable-log-dump",
      "--ginkgo.no-color",
      `--ginkgo.focus=${focus}`,
      // As the other suites of real processes: in CI a test may need a second try, and is printed so.
      `--ginkgo.flake-attempts=${process.env["CI"] === undefined ? 1 : 2}`,
      `--ginkgo.timeout=${options.timeoutMinutes}m`,
      `--ginkgo.json-report=${report}`,
    ],
    { cwd: options.dir },
  );
  const text = await readFile(report, "utf8").catch((thrown: unknown) => {
    throw new Error(`the e2e suite exited ${code} without a report:\n${(stdout + stderr).slice(-4000)}`, {
      cause: thrown,
    });
  });
  const specs = (JSON.parse(text) as { SpecReports: GinkgoSpec[] | null }[]).flatMap(
    (suite) => suite.SpecReports ?? [],
  );
  return specs
    .filter(({ LeafNodeType, State }) => LeafNodeType === "It" && State !== "skipped")
    .map((spec) => ({
      name: [...(spec.ContainerHierarchyTexts ?? []), spec.LeafNodeText].join(" "),
      state: spec.State,
      seconds: spec.RunTime / 1e9,
      attempts: spec.NumAttempts,
      failure: spec.Failure?.Message
        ? `${spec.Failure.Message}\n${spec.Failure.Location?.FileName}:${spec.Failure.Location?.LineNumber}`
        : "",
    }));
}

/** The images that the suite's pods name. */
export async function suiteImages(binary: string): Promise<string[]> {
  return (await runCommand(binary, ["--list-images"])).stdout
    .split("\n")
    .filter((line) => /^[\w.-]+\/\S+:\S+$/.test(line));
}
