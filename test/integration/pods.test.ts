import { podCases } from "../e2e/cases/pod-cases.ts";
import { startDevEnvironment } from "../e2e/cases/start.ts";
import { describeCases } from "../e2e/cases/suite.ts";

describeCases("pods on devcluster", {
  start: startDevEnvironment,
  startTimeoutMs: 60_000,
  cases: podCases,
  // devcluster cannot be killed and started again; the backend is killed in e2e, to keep the fast tests fast.
  faults: ["nothing", "the agent"],
  // An agent that starts after the pod has gone leaves the machine its minute of grace; e2e waits for it.
  leaveOut: ({ name }, fault) => fault !== "nothing" && name.startsWith("a pod deleted by force"),
  timeoutMs: 180_000,
  concurrent: true,
});
