/**
 * What the controllers of a cluster do, as cases that run against any: devcluster's in `npm test`, and unchanged the real
 * kube-controller-manager. Neither scheduler nor kubelet is there: a case says itself what has become of its pods.
 */
import { autoscalerCases } from "./cases/controllers/autoscalers.ts";
import { clusterCases } from "./cases/controllers/cluster.ts";
import { jobCases } from "./cases/controllers/jobs.ts";
import { ownershipCases } from "./cases/controllers/ownership.ts";
import { rolloutCases } from "./cases/controllers/rollouts.ts";
import type { FidelityCase } from "./support.ts";

export const controllerFidelityCases: readonly FidelityCase[] = [
  ...rolloutCases,
  ...ownershipCases,
  ...jobCases,
  ...clusterCases,
  ...autoscalerCases,
];
