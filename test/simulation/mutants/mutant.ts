import type { VmCloud } from "../../../providers/cloud/cloud.ts";
import type { KubeApiError } from "../../../src/kube/errors.ts";
import type { KubeRequest } from "../../../src/kube/kube.ts";
import type { Node, Pod } from "../../../src/kube/wire.ts";
import type { Action } from "../../../src/pods/decision.ts";
import type { plan as realPlan } from "../../../src/pods/planner.ts";
import type { PodMemory } from "../../../src/pods/pod-memory.ts";
import type { Renderer } from "../../../src/pods/reconciler-options.ts";
import type { ProviderError } from "../../../src/provider/errors.ts";
import type { MachineList } from "../../../src/provider/provider.ts";
import type { PersistentVolume } from "../../../src/provider/volume.ts";
import type { PodHistory } from "../world/history.ts";
import type { WorldFlaws } from "../world/world.ts";

export type Plan = typeof realPlan;

/** A planted bug: what to break in the agent, or in its servers, and what must be found broken then. */
export interface Mutant {
  name: string;
  /** Number of the rule in ARCHITECTURE.md, "The protocol". */
  rule: number;
  /** The invariant that must be violated, for this and no other reason: a rule's name and the beginning of its text. */
  caughtAs: string;
  /** In which scenario. Default: everyday. */
  scenario?: string;
  world?: WorldFlaws;
  /** How a machine's id is made. */
  machineId?: (uid: string, pod: Pick<PodHistory, "namespace" | "name">) => string;
  plan?: (real: Plan) => Plan;
  renderer?: (real: Renderer) => Renderer;
  /** Rewrites an agent's request to the API server; `cached` is what its lagging cache holds under that path. */
  kube?: (request: KubeRequest, cached: (path: string) => Pod | undefined) => KubeRequest | { reply: unknown };
  /** What the agent makes of an error of the API server. */
  kubeError?: (error: KubeApiError, request: KubeRequest) => KubeApiError;
  /** What it makes of an error of the backend. */
  provider?: (error: ProviderError, operation: string) => ProviderError;
  /** What an agent sees of its Node when it writes it. */
  nodeSeen?: (node: Node) => Node;
  /** What it is told of a volume. */
  volume?: (volume: PersistentVolume) => PersistentVolume;
  /** Whether the Node says that a pod's volumes are in use. */
  isTold?: (isTold: boolean) => boolean;
  /** Looks at a list of machines before anybody else does. @throws what becomes of the whole list */
  machineList?: (list: MachineList) => void;
  /** A cloud as the provider of its VMs sees it. */
  cloud?: (real: VmCloud) => VmCloud;
  /** Takes machines of other nodes for its own. */
  seesForeign?: boolean;
  /** Goes on without the lead. */
  ignoresLead?: boolean;
  /** How many strangers' machines it removes a minute. */
  reapsPerMinute?: number;
}

/** The real decision, changed afterwards. */
export const replan =
  (change: (action: Action, ...args: Parameters<Plan>) => Action) =>
  (real: Plan): Plan =>
  (...args) =>
    change(real(...args), ...args);

/** The real decision, made with another memory. */
export const misremember =
  (change: (...args: Parameters<Plan>) => Partial<PodMemory>) =>
  (real: Plan): Plan =>
  (desired, observed, memory, context) =>
    real(desired, observed, { ...memory, ...change(desired, observed, memory, context) }, context);
