/** Kinds that speak of other objects: disruption budgets, and the slices of a Service's endpoints. */
import { invalidValue, required, type FieldCause } from "../objects/errors.ts";
import type { Json, StoredObject } from "../objects/object.ts";
import { bumpGeneration, defineKind, keepStatus, statusOnly } from "./kind.ts";
import { validateIntOrPercent } from "./pod-template.ts";

function validateBudget({ spec }: StoredObject): FieldCause[] {
  if (spec.minAvailable !== undefined && spec.maxUnavailable !== undefined)
    return [invalidValue("spec", spec, "minAvailable and maxUnavailable cannot be both set")];
  return [
    ...(spec.minAvailable === undefined ? [] : validateIntOrPercent("spec.minAvailable", spec.minAvailable)),
    ...(spec.maxUnavailable === undefined ? [] : validateIntOrPercent("spec.maxUnavailable", spec.maxUnavailable)),
  ];
}

const podDisruptionBudgets = defineKind({
  group: "policy",
  kind: "PodDisruptionBudget",
  resource: "poddisruptionbudgets",
  shortNames: ["pdb"],
  setDefaults(budget) {
    budget.spec ??= {};
    budget.spec.selector ??= undefined;
  },
  prepareCreate(budget) {
    budget.metadata.generation = 1;
    budget.status = { currentHealthy: 0, desiredHealthy: 0, disruptionsAllowed: 0, expectedPods: 0 };
  },
  validate: validateBudget,
  update: {
    prepare(next, old) {
      keepStatus(next, old);
      bumpGeneration(next, old);
    },
    validate: (next) => validateBudget(next),
  },
  subresources: { status: statusOnly },
});

const endpointSlices = defineKind({
  group: "discovery.k8s.io",
  kind: "EndpointSlice",
  resource: "endpointslices",
  setDefaults(slice) {
    for (const port of slice.ports ?? []) {
      port.name ??= "";
      port.protocol ??= "TCP";
    }
  },
  prepareCreate(slice) {
    slice.metadata.generation = 1;
  },
  validate: (slice) => (slice["addressType"] ? [] : [required("addressType")]),
  update: {
    prepare(next, old) {
      const content = (o: StoredObject): Json => ({ spec: [o["endpoints"], o["ports"], o.metadata.labels] });
      bumpGeneration({ ...next, ...content(next) }, { ...old, ...content(old) });
    },
    validate: (next, old) =>
      next["addressType"] === old["addressType"]
        ? []
        : [invalidValue("addressType", next["addressType"], "field is immutable")],
  },
});

/** In the order of discovery. */
export const policyKinds = [endpointSlices, podDisruptionBudgets];
