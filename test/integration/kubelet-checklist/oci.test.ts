import { test } from "vitest";
import { createOciEngine } from "../../../providers/local/engines/oci/engine.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { systemClock } from "../../../src/util/clock.ts";
import { describeChecklist, ociPlace } from "../../e2e/cases/checklist/suite.ts";
import { startDevEnvironment } from "../../e2e/cases/start.ts";
import { missingForImages } from "../../support/registry.ts";

const engine = createOciEngine({ stateDir: "/nonexistent", clock: systemClock, logger: silentLogger });
const problems = (await engine.check()).filter(({ fatal }) => fatal).map(({ problem }) => problem);
const missing = [...problems, ...[missingForImages() ?? []].flat()];
const title = "the kubelet's checklist on devcluster, engine oci";

if (missing.length > 0) test.skip(`${title} (${missing.join(", ")})`);
else {
  describeChecklist(title, await ociPlace(engine.capabilities, false), {
    start: startDevEnvironment,
    startTimeoutMs: 60_000,
  });
}
