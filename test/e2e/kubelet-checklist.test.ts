import { createOciEngine } from "../../providers/local/engines/oci/engine.ts";
import { createProcessEngine } from "../../providers/local/engines/process/process.ts";
import { silentLogger } from "../../src/telemetry/logger.ts";
import { systemClock } from "../../src/util/clock.ts";
import { missingForImages } from "../support/registry.ts";
import { describeChecklist, ociPlace, processPlace } from "./cases/checklist/suite.ts";
import { startRealEnvironment } from "./cases/start.ts";

const oci = createOciEngine({ stateDir: "/nonexistent", clock: systemClock, logger: silentLogger });
const problems = (await oci.check()).filter(({ fatal }) => fatal).map(({ problem }) => problem);
const missing = [...problems, ...[missingForImages() ?? []].flat()];

// The control plane may have to be built first.
const how = { start: startRealEnvironment, startTimeoutMs: 1_200_000 };

if (missing.length > 0) {
  const { capabilities } = createProcessEngine({
    stateDir: "/nonexistent",
    images: {},
    addressPool: "127.64.0.0/10",
    clock: systemClock,
  });
  const title = `the kubelet's checklist on a real control plane, engine process (engine oci: ${missing.join(", ")})`;
  describeChecklist(title, processPlace(capabilities, true), how);
} else {
  describeChecklist(
    "the kubelet's checklist on a real control plane, engine oci",
    await ociPlace(oci.capabilities, true),
    how,
  );
}
