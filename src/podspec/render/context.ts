/** What the parts of one render share: what it is made from, and what they leave for each other. */
import { containersOf, uidOf } from "../../kube/pod.ts";
import type { Pod } from "../../kube/wire.ts";
import type { Capability } from "../../provider/capabilities.ts";
import { isReserved } from "../admission/reserved.ts";
import { PodBudget } from "../budget.ts";
import type { Backend, NodeFacts, PodEvent, References, WaitingContainer } from "../types.ts";
import { envTokens, type EnvTokens, podServiceVariables } from "./env.ts";
import { addressTokens, type AddressTokens } from "./field-refs.ts";

export interface RenderInput {
  pod: Pod;
  references: References;
  node: NodeFacts;
  backend: Backend;
  /** The pod's shape, and what it needs of this very backend, were found to be in order already. */
  isJudged?: boolean | undefined;
  /** The backend's own, by the pod's RuntimeClass. */
  runtimeHandler?: string | undefined;
}

export interface RenderContext extends RenderInput {
  tokens: AddressTokens;
  envTokens: EnvTokens;
  events: PodEvent[];
  waiting: Map<string, WaitingContainer>;
  /** Names of the volumes that the machine has; mounts of others are left out. */
  volumeNames: Set<string>;
  readOnlyVolumes: Set<string>;
  /** What containers of the pod mount, and what they have as block devices: no volume is both. */
  mountedVolumes: ReadonlySet<string>;
  deviceVolumes: ReadonlySet<string>;
  /** Names of the volumes that the pod has. */
  declaredVolumes: ReadonlySet<string>;
  budget: PodBudget;
  /** The same for all containers. @throws OverBudgetError */
  serviceVariables: () => ReadonlyMap<string, string> | undefined;
}

/** Whether the backend has it, for pods of this one's namespace. */
export function mayUse({ backend, pod }: Pick<RenderInput, "backend" | "pod">, capability: Capability): boolean {
  return backend.capabilities.has(capability) && !isReserved(capability, pod, backend);
}

export function newContext(input: RenderInput): RenderContext {
  let services: ReadonlyMap<string, string> | undefined;
  const { pod, references } = input;
  return {
    ...input,
    tokens: addressTokens(uidOf(pod)),
    envTokens: envTokens(uidOf(pod)),
    events: [],
    waiting: new Map(),
    volumeNames: new Set(),
    readOnlyVolumes: new Set(),
    mountedVolumes: namesOf(pod, "volumeMounts"),
    deviceVolumes: namesOf(pod, "volumeDevices"),
    declaredVolumes: new Set((pod.spec?.volumes ?? []).map(({ name }) => name)),
    budget: new PodBudget(),
    serviceVariables: () => (services ??= references.services && podServiceVariables(pod, references.services)),
  };
}

/** Not those of ephemeral containers: when they come, the volume is had already. */
const namesOf = (pod: Pod, field: "volumeMounts" | "volumeDevices"): Set<string> =>
  new Set(containersOf(pod).flatMap((container) => (container[field] ?? []).map(({ name }) => name)));
