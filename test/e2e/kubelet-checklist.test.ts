/** On the engine that `VMLET_TEST_ENGINE` names; without it on oci, or on plain processes where the host has no runtime. */
import { createProcessEngine } from "../../providers/local/engines/process/process.ts";
import { systemClock } from "../../src/util/clock.ts";
import { chosenEngine, engineOnThisHost } from "../support/engines.ts";
import { leaveOut } from "../support/left-out.ts";
import { missingForImages } from "../support/registry.ts";
import { containerPlace, describeChecklist, processPlace } from "./cases/checklist/suite.ts";
import { startRealEnvironment } from "./cases/start.ts";

const asked = chosenEngine("any");
const engine = asked === "any" ? "oci" : asked;
const { capabilities, missing: lacks } = await engineOnThisHost(engine);
const missing = [...lacks, ...[missingForImages() ?? []].flat()];

// The control plane may have to be built first.
const how = { start: startRealEnvironment, startTimeoutMs: 1_200_000 };
const where = "the kubelet's checklist on a real control plane, engine";

if (missing.length > 0 && asked !== "any") leaveOut(`${where} ${engine}`, missing);
else if (missing.length > 0) {
  const { capabilities } = createProcessEngine({
    stateDir: "/nonexistent",
    images: {},
    addressPool: "127.64.0.0/10",
    clock: systemClock,
  });
  describeChecklist(
    `${where} process (engine ${engine}: ${missing.join(", ")})`,
    processPlace(capabilities, true),
    how,
  );
} else describeChecklist(`${where} ${engine}`, await containerPlace(engine, capabilities, true), how);
