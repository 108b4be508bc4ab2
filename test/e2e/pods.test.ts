import { controllerCases } from "./cases/controller-cases.ts";
import { faults } from "./cases/environment.ts";
import { podCases } from "./cases/pod-cases.ts";
import { startRealEnvironment } from "./cases/start.ts";
import { describeCases } from "./cases/suite.ts";

describeCases("pods on a real control plane", {
  start: startRealEnvironment,
  // The control plane may have to be built first.
  startTimeoutMs: 1_200_000,
  cases: [...podCases, ...controllerCases],
  faults,
  timeoutMs: 240_000,
});
