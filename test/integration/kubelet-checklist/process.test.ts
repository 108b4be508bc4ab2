import { existsSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { createProcessEngine } from "../../../providers/local/engines/process/process.ts";
import { systemClock } from "../../../src/util/clock.ts";
import { checklist, elsewhere, ids } from "../../e2e/cases/checklist/index.ts";
import { describeChecklist, processPlace } from "../../e2e/cases/checklist/suite.ts";
import { startDevEnvironment } from "../../e2e/cases/start.ts";

const { capabilities } = createProcessEngine({
  stateDir: "/nonexistent",
  images: {},
  addressPool: "127.64.0.0/10",
  clock: systemClock,
});

describeChecklist("the kubelet's checklist on devcluster, engine process", processPlace(capabilities, false), {
  start: startDevEnvironment,
  startTimeoutMs: 60_000,
});

test("every behaviour of the list has a case, or a file whose tests are about it", () => {
  const covered = new Set([...checklist.flatMap((each) => each.ids), ...Object.keys(elsewhere)]);
  expect(ids.filter((id) => !covered.has(id))).toEqual([]);
  expect([...covered].filter((id) => !ids.includes(id))).toEqual([]);
  const root = join(import.meta.dirname, "../../..");
  expect(Object.values(elsewhere).filter((file) => !existsSync(join(root, file)))).toEqual([]);
});
