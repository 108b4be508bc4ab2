import { missingForIncus } from "../support/incus.ts";
import { leaveOut } from "../support/left-out.ts";
import { missingForImages } from "../support/registry.ts";
import { controllerCases } from "./cases/controller-cases.ts";
import { startIncusCases } from "./cases/incus.ts";
import { podCases } from "./cases/pod-cases.ts";
import { describeCases } from "./cases/suite.ts";

const missing = [...(await missingForIncus()), ...[missingForImages() ?? []].flat()];

// "The backend" is the member's incusd, "the runtime" the guests' program.
if (missing.length > 0) leaveOut("pods' cases on Incus", missing);
else
  describeCases("pods on Incus", {
    start: startIncusCases,
    startTimeoutMs: 1_200_000,
    cases: [...podCases, ...controllerCases],
    faults: ["nothing", "the agent", "the backend", "the runtime"],
    timeoutMs: 900_000,
  });
