/** The steps of `helm-in-cluster.ts` as tests. */
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { beforeAll, describe, expect, test } from "vitest";
import { OciEngine } from "../../providers/local/engines/oci/engine.ts";
import { findTool } from "../../providers/local/host/command.ts";
import { silentLogger } from "../../src/telemetry/logger.ts";
import { systemClock } from "../../src/util/clock.ts";
import { missingForImages } from "../support/registry.ts";
import { createSandbox } from "./harness/processes.ts";
import { stepNames, type StepResult } from "./helm-in-cluster.ts";

interface InClusterOptions {
  /** Of the chart's backend. */
  engine: "process" | "cri";
  /** The agent's and the backend's, as skopeo calls them; else they are made without a userland. */
  images?: (() => string[]) | undefined;
}

const oci = new OciEngine({ stateDir: "/nonexistent", clock: systemClock, logger: silentLogger });
const problems = (await oci.check()).filter(({ fatal }) => fatal).map(({ problem }) => problem);
const noSkopeo = findTool("skopeo") === undefined ? ["not on the PATH: skopeo"] : [];
const missing = [...problems, ...[missingForImages() ?? []].flat(), ...noSkopeo];
const left = missing.length === 0 ? "" : ` (skipped: ${missing.join(", ")})`;

export function describeInCluster({ engine, images = () => [] }: InClusterOptions): void {
  describe.runIf(missing.length === 0)(`the chart in a cluster that runs its pods, engine ${engine}${left}`, () => {
    let results: StepResult[];
    let log: string;

    // kube-proxy and CoreDNS may have to be built first.
    beforeAll(async () => {
      await using sandbox = await createSandbox("in-cluster");
      const command = [join(import.meta.dirname, "helm-in-cluster.ts"), engine, ...images()];
      const program = sandbox.spawn("program", process.execPath, command);
      await program.exited;
      log = await readFile(program.logFile, "utf8");
      results = log
        .split("\n")
        .filter((line) => line.startsWith('{"step":'))
        .map((line) => JSON.parse(line) as StepResult);
    }, 1_800_000);

    test.each(stepNames(engine))("%s", (name) => {
      const result = results.find(({ step }) => step === name);
      expect(
        result === undefined ? `it did not come to this; the log ends:\n${log.slice(-4000)}` : result.failure,
      ).toBe(undefined);
    });
  });
}
