import { podCases } from "../e2e/cases/pod-cases.ts";
import { startDevEnvironment } from "../e2e/cases/start.ts";
import { describeCases } from "../e2e/cases/suite.ts";

describeCases("pods on devcluster", {
  start: startDevEnvironment,
  startTimeoutMs: 60_000,
  cases: podCases,
  // devcluster lives in memory: it cannot be killed and started again.
  faults: ["nothing", "the agent", "the backend"],
  timeoutMs: 180_000,
  concurrent: true,
});
