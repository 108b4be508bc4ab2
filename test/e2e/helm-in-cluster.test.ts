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

const engine = new OciEngine({ stateDir: "/nonexistent", clock: systemClock, logger: silentLogger });
const problems = (await engine.check()).filter(({ fatal }) => fatal).map(({ problem }) => problem);
const noSkopeo = findTool("skopeo") === undefined ? ["not on the PATH: skopeo"] : [];
const missing = [...problems, ...[missingForImages() ?? []].flat(), ...noSkopeo];
const title = "the chart in a cluster that runs its pods";

/** The Dockerfile's packages and programs. */
const forContainers = ["mmdebstrap", "go", "pkg-config"].filter((tool) => findTool(tool) === undefined);
const engines = [
  { engine: "process", lacks: missing },
  { engine: "cri", lacks: [...missing, ...forContainers] },
];
const left = ({ lacks }: { lacks: string[] }) => (lacks.length === 0 ? "" : ` (skipped: ${lacks.join(", ")})`);

for (const each of engines)
  describe.runIf(each.lacks.length === 0)(`${title}, engine ${each.engine}${left(each)}`, () => {
    let results: StepResult[];
    let log: string;

    // kube-proxy and CoreDNS may have to be built first.
    beforeAll(async () => {
      await using sandbox = await createSandbox("in-cluster");
      const program = sandbox.spawn("program", process.execPath, [
        join(import.meta.dirname, "helm-in-cluster.ts"),
        each.engine,
      ]);
      await program.exited;
      log = await readFile(program.logFile, "utf8");
      results = log
        .split("\n")
        .filter((line) => line.startsWith('{"step":'))
        .map((line) => JSON.parse(line) as StepResult);
    }, 1_800_000);

    test.each(stepNames(each.engine))("%s", (name) => {
      const result = results.find(({ step }) => step === name);
      expect(
        result === undefined ? `it did not come to this; the log ends:\n${log.slice(-4000)}` : result.failure,
      ).toBe(undefined);
    });
  });
