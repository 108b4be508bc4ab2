/** The cases of pods on engine cri, with the backend killed in their middle, and its containerd. */
import { podCases } from "../../e2e/cases/pod-cases.ts";
import { startDevEnvironment } from "../../e2e/cases/start.ts";
import { describeCases } from "../../e2e/cases/suite.ts";
import { useEngine } from "../../e2e/cases/workload.ts";
import { engineOnThisHost } from "../../support/engines.ts";
import { leaveOut } from "../../support/left-out.ts";
import { missingForImages } from "../../support/registry.ts";

const missing = [...(await engineOnThisHost("cri")).missing, ...[missingForImages() ?? []].flat()];
const title = "pods on devcluster, engine cri";

if (missing.length > 0) leaveOut(title, missing);
else
  describeCases(title, {
    async start() {
      const { engine, stop } = await useEngine("cri");
      const env = await startDevEnvironment({ engine });
      return Object.assign(Object.create(env) as typeof env, {
        async [Symbol.asyncDispose]() {
          await env[Symbol.asyncDispose]();
          await stop();
        },
      });
    },
    startTimeoutMs: 60_000,
    cases: podCases,
    faults: ["the backend", "the runtime"],
    timeoutMs: 180_000,
    concurrent: true,
  });
