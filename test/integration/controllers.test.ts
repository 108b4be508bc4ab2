/** The cases about controllers on devcluster's own; the real kube-controller-manager has them in e2e, disturbed by kills. */
import { autoscalerCases } from "../e2e/cases/autoscaler-cases.ts";
import { controllerCases } from "../e2e/cases/controller-cases.ts";
import { startDevEnvironment } from "../e2e/cases/start.ts";
import { describeCases } from "../e2e/cases/suite.ts";

describeCases("controllers on devcluster", {
  start: startDevEnvironment,
  startTimeoutMs: 60_000,
  // These two do something to the node that the other cases are on: alone they run in e2e.
  cases: [
    ...controllerCases.filter(({ name }) => !/^kubectl drain|^a NoExecute taint|keeps one that is Pending/.test(name)),
    ...autoscalerCases,
  ],
  faults: ["nothing"],
  timeoutMs: 180_000,
  concurrent: true,
});
