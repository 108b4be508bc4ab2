/** HorizontalPodAutoscalers, with the rules of `pkg/apis/autoscaling/validation`. */
import { Quantity } from "../../resources/quantity.ts";
import { forbiddenField, invalidValue, notSupported, required, type FieldCause } from "../objects/errors.ts";
import type { Json, StoredObject } from "../objects/object.ts";
import { defineKind, keepStatus, statusOnly } from "./kind.ts";

const scaleUp = {
  stabilizationWindowSeconds: 0,
  selectPolicy: "Max",
  policies: [
    { type: "Pods", value: 4, periodSeconds: 15 },
    { type: "Percent", value: 100, periodSeconds: 15 },
  ],
};
const scaleDown = { selectPolicy: "Max", policies: [{ type: "Percent", value: 100, periodSeconds: 15 }] };

const MAX_STABILIZATION_SECONDS = 3600;
const MAX_PERIOD_SECONDS = 1800;

/** The field in which a metric of each type says what it is. */
const SOURCES: Readonly<Record<string, string>> = {
  ContainerResource: "containerResource",
  External: "external",
  Object: "object",
  Pods: "pods",
  Resource: "resource",
};

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
  return [
    ...causes,
    ...(spec.metrics as Json[]).flatMap((metric, i) => validateMetric(metric, `spec.metrics[${i}]`)),
    ...["scaleUp", "scaleDown"].flatMap((field) =>
      spec.behavior ? validateRules(spec.behavior[field], `spec.behavior.${field}`) : [],
    ),
  ];
}

function validateMetric(metric: Json, at: string): FieldCause[] {
  const type = (metric.type ?? "") as string;
  const causes: FieldCause[] = type === "" ? [required(`${at}.type`, "must specify a metric source type")] : [];
  const present = Object.values(SOURCES).filter((field) => metric[field]);
  const expected = SOURCES[type];
  if (expected === undefined) causes.push(notSupported(`${at}.type`, type, Object.keys(SOURCES)));
  if (present[0] !== undefined) causes.push(...validateSource(present[0], metric[present[0]], `${at}.${present[0]}`));
  if (expected !== undefined && !metric[expected])
    causes.push(required(`${at}.${expected}`, "must populate information for the given metric source"));
  if (present.length > 1)
    for (const field of present)
      if (field !== expected)
        causes.push(forbiddenField(`${at}.${field}`, "must populate the given metric source only"));
  return causes;
}

function validateSource(field: string, source: Json, at: string): FieldCause[] {
  const isResource = field === "resource" || field === "containerResource";
  const causes: FieldCause[] = [];
  if (isResource && !source.name) causes.push(required(`${at}.name`, "must specify a resource name"));
  if (!isResource && !source.metric?.name) causes.push(required(`${at}.metric.name`, "must specify a metric name"));
  if (field === "containerResource" && !source.container)
    causes.push(required(`${at}.container`, "must specify a container"));
  const target: Json = source.target ?? {};
  causes.push(...validateTarget(target, `${at}.target`));
  const { value, averageValue, averageUtilization } = target;
  if (isResource) {
    if (averageUtilization === undefined && averageValue === undefined)
      causes.push(
        required(`${at}.target.averageUtilization`, "must set either a target raw value or a target utilization"),
      );
    if (averageUtilization !== undefined && averageValue !== undefined)
      causes.push(
        forbiddenField(`${at}.target.averageValue`, "may not set both a target raw value and a target utilization"),
      );
  } else if (averageValue === undefined && (value === undefined || field === "pods")) {
    causes.push(required(`${at}.target.averageValue`, MISSING_VALUE[field]));
  }
  return causes;
}

const MISSING_VALUE: Readonly<Record<string, string>> = {
  pods: "must specify a positive target averageValue",
  object: "must set either a target value or averageValue",
  external: "must set either a target value for metric or a per-pod target",
};

function validateTarget({ type = "", value, averageValue, averageUtilization }: Json, at: string): FieldCause[] {
  const causes: FieldCause[] = type === "" ? [required(`${at}.type`, "must specify a metric target type")] : [];
  if (!["Utilization", "Value", "AverageValue"].includes(type))
    causes.push(invalidValue(`${at}.type`, type, "must be either Utilization, Value, or AverageValue"));
  for (const [field, amount] of Object.entries({ value, averageValue }))
    if (amount !== undefined && Quantity.parse(amount).nano <= 0n)
      causes.push(invalidValue(`${at}.${field}`, amount, "must be positive"));
  if (averageUtilization < 1)
    causes.push(invalidValue(`${at}.averageUtilization`, averageUtilization, "must be greater than 0"));
  return causes;
}

function validateRules(rules: Json, at: string): FieldCause[] {
  const causes: FieldCause[] = [];
  const { stabilizationWindowSeconds: seconds, selectPolicy, tolerance } = rules;
  const policies = rules.policies as Json[];
  if (seconds < 0)
    causes.push(invalidValue(`${at}.stabilizationWindowSeconds`, seconds, "must be greater than or equal to zero"));
  if (seconds > MAX_STABILIZATION_SECONDS)
    causes.push(
      invalidValue(
        `${at}.stabilizationWindowSeconds`,
        seconds,
        `must be less than or equal to ${MAX_STABILIZATION_SECONDS}`,
      ),
    );
  if (!["Disabled", "Max", "Min"].includes(selectPolicy))
    causes.push(notSupported(`${at}.selectPolicy`, selectPolicy, ["Disabled", "Max", "Min"]));
  causes.push(...policies.flatMap((policy, i) => validatePolicy(policy, `${at}.policies[${i}]`)));
  if (tolerance !== undefined && Quantity.parse(tolerance).nano < 0n)
    causes.push(invalidValue(`${at}.tolerance`, tolerance, "must be greater than or equal to 0"));
  return causes;
}

function validatePolicy({ type, value, periodSeconds }: Json, at: string): FieldCause[] {
  const causes: FieldCause[] = [];
  if (type !== "Pods" && type !== "Percent") causes.push(notSupported(`${at}.type`, type ?? "", ["Percent", "Pods"]));
  if (!(value > 0)) causes.push(invalidValue(`${at}.value`, value ?? 0, "must be greater than zero"));
  if (!(periodSeconds > 0))
    causes.push(invalidValue(`${at}.periodSeconds`, periodSeconds ?? 0, "must be greater than zero"));
  if (periodSeconds > MAX_PERIOD_SECONDS)
    causes.push(
      invalidValue(`${at}.periodSeconds`, periodSeconds, `must be less than or equal to ${MAX_PERIOD_SECONDS}`),
    );
  return causes;
}

export const horizontalPodAutoscalers = defineKind({
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
