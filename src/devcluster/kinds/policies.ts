/** Kinds that speak of other objects: autoscaling, disruption budgets, and the slices of a Service's endpoints. */
import { invalidValue, required, type FieldCause } from "../objects/errors.ts";
import type { Json, StoredObject } from "../objects/object.ts";
import { bumpGeneration, defineKind, keepStatus, statusOnly } from "./kind.ts";
import { validateIntOrPercent } from "./pod-template.ts";

const scaleUp = {
  stabilizationWindowSeconds: 0,
  selectPolicy: "Max",
  policies: [
    { type: "Pods", value: 4, periodSeconds: 15 },
    { type: "Percent", value: 100, periodSeconds: 15 },
  ],
};
const scaleDown = { selectPolicy: "Max", policies: [{ type: "Percent", value: 100, periodSeconds: 15 }] };

function validateAutoscaler({ spec }: StoredObject): FieldCause[] {
  const causes: FieldCause[] = [];
  if (spec.minReplicas < 1)
    causes.push(invalidValue("spec.minReplicas", spec.minReplicas, "must be greater than or equal to 1"));
  if (!(spec.maxReplicas >= 1))
    causes.push(invalidValue("spec.maxReplicas", spec.maxReplicas ?? 0, "must be greater than 0"));
  else if (spec.maxReplicas < spec.minReplicas)
    causes.push(invalidValue("spec.maxReplicas", spec.maxReplicas, "must be greater than or equal to `minReplicas`"));
  for (const field of ["kind", "name"])
    if (!spec.scaleTargetRef?.[field]) causes.push(required(`spec.scaleTargetRef.${field}`));
  return causes;
}

const horizontalPodAutoscalers = defineKind({
  group: "autoscaling",
  version: "v2",
  kind: "HorizontalPodAutoscaler",
  model: "V2HorizontalPodAutoscaler",
  resource: "horizontalpodautoscalers",
  shortNames: ["hpa"],
  categories: ["all"],
  setDefaults(autoscaler) {
    const spec = (autoscaler.spec ??= {});
    spec.minReplicas ??= 1;
    if (!spec.metrics?.length) {
      const target = { type: "Utilization", averageUtilization: 80 };
      spec.metrics = [{ type: "Resource", resource: { name: "cpu", target } }];
    }
    if (spec.behavior) {
      spec.behavior.scaleUp = { ...structuredClone(scaleUp), ...spec.behavior.scaleUp };
      spec.behavior.scaleDown = { ...structuredClone(scaleDown), ...spec.behavior.scaleDown };
    }
  },
  prepareCreate(autoscaler) {
    autoscaler.status = { desiredReplicas: 0, currentMetrics: null };
  },
  validate: validateAutoscaler,
  update: { prepare: keepStatus, validate: (next) => validateAutoscaler(next) },
  subresources: { status: statusOnly },
});

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
export const policyKinds = [horizontalPodAutoscalers, endpointSlices, podDisruptionBudgets];
