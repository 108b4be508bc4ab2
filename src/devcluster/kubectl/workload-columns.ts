/** The columns of workloads and of what speaks about them. */
import { selectorText } from "../kinds/pod-template.ts";
import type { Json } from "../objects/object.ts";
import { humanDuration } from "../../util/human-duration.ts";
import { age, orNone, pairs, simple, since, type Printer } from "./columns.ts";

const names = (template: Json): string => (template?.spec?.containers ?? []).map((c: Json) => c.name).join(",");
const images = (template: Json): string => (template?.spec?.containers ?? []).map((c: Json) => c.image).join(",");
const integer = { integer: true };
const wide = { wide: true };
const containers = (template: (object: Json) => Json): Parameters<typeof simple>[0] => [
  ["Containers", (o) => names(template(o)), wide],
  ["Images", (o) => images(template(o)), wide],
];
const ofSpec = (object: Json): Json => object.spec.template;
/** `metav1.FormatLabelSelector`. */
const orNoSelector = (selector: Json): string => selectorText(selector) || "<none>";
const selector: Parameters<typeof simple>[0] = [["Selector", (o) => orNoSelector(o.spec.selector), wide]];

/** At most so many, then how many more. */
function listed(values: readonly string[], most: number, none = "<unset>"): string {
  const shown = values.slice(0, most).join(",");
  return values.length > most ? `${shown} + ${values.length - most} more...` : shown || none;
}

function jobStatus({ metadata, status }: Json): string {
  const has = (type: string) => status?.conditions?.some((c: Json) => c.type === type && c.status === "True");
  if (has("Complete")) return "Complete";
  if (has("Failed")) return "Failed";
  if (metadata.deletionTimestamp) return "Terminating";
  return ["Suspended", "FailureTarget", "SuccessCriteriaMet"].find(has) ?? "Running";
}

function jobCompletions({ spec, status }: Json): string {
  const succeeded = status?.succeeded ?? 0;
  if (spec.completions !== undefined) return `${succeeded}/${spec.completions}`;
  return spec.parallelism > 1 ? `${succeeded}/1 of ${spec.parallelism}` : `${succeeded}/1`;
}

function jobDuration({ status }: Json, now: number): string {
  if (!status?.startTime) return "";
  const end = status.completionTime ? Date.parse(status.completionTime) : now;
  return humanDuration(end - Date.parse(status.startTime));
}

function metrics({ spec, status }: Json): string {
  const list = ((spec.metrics ?? []) as Json[]).map((metric, i) => {
    const field = metric.type.charAt(0).toLowerCase() + metric.type.slice(1);
    const { name, target } = metric[field] ?? {};
    const current = status?.currentMetrics?.[i]?.[field]?.current;
    const prefix = field === "resource" || field === "containerResource" ? `${name}: ` : "";
    if (target?.averageUtilization !== undefined) {
      const value = current?.averageUtilization;
      return `${prefix}${value === undefined ? "<unknown>" : `${value}%`}/${target.averageUtilization}%`;
    }
    if (target?.averageValue !== undefined)
      return `${prefix}${current?.averageValue ?? "<unknown>"}/${target.averageValue}`;
    return `${prefix}${current?.value ?? "<unknown>"}/${target?.value}`;
  });
  return list.length > 2 ? `${list.slice(0, 2).join(", ")} + ${list.length - 2} more...` : list.join(", ") || "<none>";
}

function revisionOwner({ metadata }: Json): string {
  const owner = metadata.ownerReferences?.find((each: Json) => each.controller);
  if (!owner) return "<none>";
  const group = owner.apiVersion.split("/")[0];
  return `${owner.kind.toLowerCase()}.${group}/${owner.name}`;
}

export const workloadPrinters: Readonly<Record<string, Printer>> = {
  Deployment: simple([
    ["Ready", ({ spec, status }) => `${status?.readyReplicas ?? 0}/${spec.replicas}`],
    ["Up-to-date", ({ status }) => status?.updatedReplicas ?? 0],
    ["Available", ({ status }) => status?.availableReplicas ?? 0],
    ["Age", age],
    ...containers(ofSpec),
    ["Selector", ({ spec }) => selectorText(spec.selector), wide],
  ]),
  ReplicaSet: simple([
    ["Desired", ({ spec }) => spec.replicas, integer],
    ["Current", ({ status }) => status?.replicas ?? 0, integer],
    ["Ready", ({ status }) => status?.readyReplicas ?? 0, integer],
    ["Age", age],
    ...containers(ofSpec),
    ...selector,
  ]),
  StatefulSet: simple([
    ["Ready", ({ spec, status }) => `${status?.readyReplicas ?? 0}/${spec.replicas}`],
    ["Age", age],
    ...containers(ofSpec),
  ]),
  DaemonSet: simple([
    ["Desired", ({ status }) => status?.desiredNumberScheduled ?? 0, integer],
    ["Current", ({ status }) => status?.currentNumberScheduled ?? 0, integer],
    ["Ready", ({ status }) => status?.numberReady ?? 0, integer],
    ["Up-to-date", ({ status }) => status?.updatedNumberScheduled ?? 0, integer],
    ["Available", ({ status }) => status?.numberAvailable ?? 0, integer],
    ["Node Selector", ({ spec }) => pairs(spec.template.spec.nodeSelector)],
    ["Age", age],
    ...containers(ofSpec),
    ...selector,
  ]),
  ControllerRevision: simple([
    ["Controller", revisionOwner],
    ["Revision", ({ revision }) => revision, integer],
    ["Age", age],
  ]),
  Job: simple([
    ["Status", jobStatus],
    ["Completions", jobCompletions],
    ["Duration", jobDuration],
    ["Age", age],
    ...containers(ofSpec),
    ...selector,
  ]),
  CronJob: simple([
    ["Schedule", ({ spec }) => spec.schedule],
    ["Timezone", ({ spec }) => orNone(spec.timeZone)],
    ["Suspend", ({ spec }) => (spec.suspend ? "True" : "False"), { boolean: true }],
    ["Active", ({ status }) => status?.active?.length ?? 0, integer],
    ["Last Schedule", ({ status }, now) => (status?.lastScheduleTime ? since(status.lastScheduleTime, now) : "<none>")],
    ["Age", age],
    ...containers(({ spec }) => spec.jobTemplate.spec.template),
    ["Selector", ({ spec }) => orNoSelector(spec.jobTemplate.spec.selector), wide],
  ]),
  HorizontalPodAutoscaler: simple([
    ["Reference", ({ spec }) => `${spec.scaleTargetRef.kind}/${spec.scaleTargetRef.name}`],
    ["Targets", metrics],
    ["MinPods", ({ spec }) => String(spec.minReplicas ?? "<unset>")],
    ["MaxPods", ({ spec }) => spec.maxReplicas],
    ["Replicas", ({ status }) => status?.currentReplicas ?? 0],
    ["Age", age],
  ]),
  PodDisruptionBudget: simple([
    ["Min Available", ({ spec }) => String(spec.minAvailable ?? "N/A")],
    ["Max Unavailable", ({ spec }) => String(spec.maxUnavailable ?? "N/A")],
    ["Allowed Disruptions", ({ status }) => status?.disruptionsAllowed ?? 0, integer],
    ["Age", age],
  ]),
  EndpointSlice: simple([
    ["AddressType", ({ addressType }) => addressType],
    [
      "Ports",
      ({ ports }) =>
        listed(
          (ports ?? []).map((p: Json) => String(p.port ?? "*")),
          3,
        ),
    ],
    [
      "Endpoints",
      ({ endpoints }) =>
        listed(
          (endpoints ?? []).flatMap((e: Json) => e.addresses ?? []),
          3,
        ),
    ],
    ["Age", age],
  ]),
};
