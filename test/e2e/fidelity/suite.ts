/**
 * What a client of the API may rely on, as cases that run against any API server: against devcluster in `npm test`, and
 * unchanged against the real kube-apiserver, which thereby says whether the cases themselves are true.
 *
 * Every case has a namespace of its own with a `default` service account. No case needs a scheduler or a controller, and
 * none is disturbed by one: pods are bound by `nodeName` to a node that nobody runs, or name a scheduler that is not there.
 */
import { creationCases } from "./cases/creation.ts";
import { validationCases } from "./cases/validation.ts";
import { requestsCases } from "./cases/requests.ts";
import { updatesCases } from "./cases/updates.ts";
import { patchesCases } from "./cases/patches.ts";
import { podsCases } from "./cases/pods.ts";
import { deletionCases } from "./cases/deletion.ts";
import { listsCases } from "./cases/lists.ts";
import { watchesCases } from "./cases/watches.ts";
import { otherKindsCases } from "./cases/other-kinds.ts";
import { discoveryCases } from "./cases/discovery.ts";
import type { FidelityCase } from "./support.ts";

export { prepareNamespace } from "./support.ts";

export const fidelityCases: readonly FidelityCase[] = [
  ...creationCases,
  ...validationCases,
  ...requestsCases,
  ...updatesCases,
  ...patchesCases,
  ...podsCases,
  ...deletionCases,
  ...listsCases,
  ...watchesCases,
  ...otherKindsCases,
  ...discoveryCases,
];
