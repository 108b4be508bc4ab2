import { join } from "node:path";
import { beforeAll, describe, expect, test } from "vitest";
import { engineOnThisHost } from "../support/engines.ts";
import { missingForImages } from "../support/registry.ts";
import { stepNames } from "./daemonsets.ts";
import { stepsOf } from "./harness/steps.ts";

const { missing: lacks } = await engineOnThisHost("cri");
const missing = [...lacks, ...[missingForImages() ?? []].flat()];
const title = "DaemonSets on a node that is its host";

describe.runIf(missing.length === 0)(missing.length === 0 ? title : `${title} (skipped: ${missing.join(", ")})`, () => {
  let failureOf: (step: string) => string | undefined;

  // kube-proxy and the node exporter may have to be built first.
  beforeAll(async () => {
    failureOf = await stepsOf("daemonsets", join(import.meta.dirname, "daemonsets.ts"));
  }, 1_200_000);

  test.each(stepNames)("%s", (name) => {
    expect(failureOf(name)).toBe(undefined);
  });
});
