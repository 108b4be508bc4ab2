import { chosenEngine } from "../support/engines.ts";
import { controllerCases } from "./cases/controller-cases.ts";
import { podCases } from "./cases/pod-cases.ts";
import { refusalCases } from "./cases/refusal-cases.ts";
import { startRealEnvironment } from "./cases/start.ts";
import { describeCases } from "./cases/suite.ts";

const cases = [...podCases, ...controllerCases, ...refusalCases];
// The control plane may have to be built first.
const startTimeoutMs = 1_200_000;

describeCases("pods on a real control plane", {
  start: startRealEnvironment,
  startTimeoutMs,
  cases,
  faults: [
    "nothing",
    "the agent",
    "the backend",
    ...(chosenEngine("process") === "cri" ? ["the runtime" as const] : []),
  ],
  timeoutMs: 240_000,
});

// Every restart costs the scheduler and the controllers, too, many seconds of back-off: the cases that say most are enough.
describeCases("pods on a real control plane that is restarted", {
  start: startRealEnvironment,
  startTimeoutMs,
  cases: cases.filter(({ restartsApiServer }) => restartsApiServer === true),
  faults: ["the API server"],
  timeoutMs: 240_000,
});
