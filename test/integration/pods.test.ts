import { podCases } from "../e2e/cases/pod-cases.ts";
import { startDevEnvironment } from "../e2e/cases/start.ts";
import { describeCases } from "../e2e/cases/suite.ts";

describeCases("pods on devcluster", {
  start: startDevEnvironment,
  startTimeoutMs: 60_000,
  cases: podCases,
  // devcluster cannot be killed and started again; the backend is killed in e2e, to keep the fast tests fast.
  faults: ["nothing", "the agent"],
  timeoutMs: 180_000,
  concurrent: true,
});
