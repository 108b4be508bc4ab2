import { join } from "node:path";
import { beforeAll, describe, expect, test } from "vitest";
import { engineOnThisHost } from "../support/engines.ts";
import { missingForImages } from "../support/registry.ts";
import { stepNames } from "./cluster-network.ts";
import { stepsOf } from "./harness/steps.ts";

const { missing: lacks } = await engineOnThisHost("cri");
const missing = [...lacks, ...[missingForImages() ?? []].flat()];
const title = "a cluster's own network, on hosts that have none";

describe.runIf(missing.length === 0)(missing.length === 0 ? title : `${title} (skipped: ${missing.join(", ")})`, () => {
  let failureOf: (step: string) => string | undefined;

  // kube-router may have to be built first.
  beforeAll(async () => {
    failureOf = await stepsOf("cluster-network", join(import.meta.dirname, "cluster-network.ts"));
  }, 1_200_000);

  test.each(stepNames)("%s", (name) => {
    expect(failureOf(name)).toBe(undefined);
  });
});
