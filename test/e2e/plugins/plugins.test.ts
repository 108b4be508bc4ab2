import { join } from "node:path";
import { beforeAll, describe, expect, test } from "vitest";
import { engineOnThisHost } from "../../support/engines.ts";
import { missingForImages } from "../../support/registry.ts";
import { stepsOf } from "../harness/steps.ts";
import { stepNames } from "./program.ts";

const { missing: lacks } = await engineOnThisHost("cri");
const missing = [...lacks, ...[missingForImages() ?? []].flat()];
const title = "plugins of a node";

describe.runIf(missing.length === 0)(missing.length === 0 ? title : `${title} (skipped: ${missing.join(", ")})`, () => {
  let failureOf: (step: string) => string | undefined;

  // The plugins may have to be built first.
  beforeAll(async () => {
    failureOf = await stepsOf("plugins", join(import.meta.dirname, "program.ts"));
  }, 1_200_000);

  test.each(stepNames)("%s", (name) => {
    expect(failureOf(name)).toBe(undefined);
  });
});
