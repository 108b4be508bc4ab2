import { containerPlace, describeChecklist } from "../../e2e/cases/checklist/suite.ts";
import { startDevEnvironment } from "../../e2e/cases/start.ts";
import { engineOnThisHost } from "../../support/engines.ts";
import { leaveOut } from "../../support/left-out.ts";
import { missingForImages } from "../../support/registry.ts";

const { capabilities, missing: lacks } = await engineOnThisHost("oci");
const missing = [...lacks, ...[missingForImages() ?? []].flat()];
const title = "the kubelet's checklist on devcluster, engine oci";

if (missing.length > 0) leaveOut(title, missing);
else {
  describeChecklist(title, await containerPlace("oci", capabilities, false), {
    start: startDevEnvironment,
    startTimeoutMs: 60_000,
  });
}
