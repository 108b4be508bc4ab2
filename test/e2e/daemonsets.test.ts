import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { beforeAll, describe, expect, test } from "vitest";
import { engineOnThisHost } from "../support/engines.ts";
import { missingForImages } from "../support/registry.ts";
import { stepNames, type StepResult } from "./daemonsets.ts";
import { createSandbox } from "./harness/processes.ts";

const { missing: lacks } = await engineOnThisHost("cri");
const missing = [...lacks, ...[missingForImages() ?? []].flat()];
const title = "DaemonSets on a node that is its host";

describe.runIf(missing.length === 0)(missing.length === 0 ? title : `${title} (skipped: ${missing.join(", ")})`, () => {
  let results: StepResult[];
  let log: string;

  // kube-proxy and the node exporter may have to be built first.
  beforeAll(async () => {
    await using sandbox = await createSandbox("daemonsets");
    const program = sandbox.spawn("program", process.execPath, [join(import.meta.dirname, "daemonsets.ts")]);
    await program.exited;
    log = await readFile(program.logFile, "utf8");
    results = log
      .split("\n")
      .filter((line) => line.startsWith('{"step":'))
      .map((line) => JSON.parse(line) as StepResult);
  }, 1_200_000);

  test.each(stepNames)("%s", (name) => {
    const result = results.find(({ step }) => step === name);
    expect(result === undefined ? `it did not come to this; the log ends:\n${log.slice(-4000)}` : result.failure).toBe(
      undefined,
    );
  });
});
