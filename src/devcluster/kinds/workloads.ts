/** The kinds of `apps`: defaults, validation and update rules (`pkg/apis/apps`, `pkg/registry/apps`). */
import { forbiddenField, invalidValue, notSupported, required, type FieldCause } from "../objects/errors.ts";
import { jsonEqual, type Json, type StoredObject } from "../objects/object.ts";
import { bumpGeneration, defineKind, keepStatus, statusOnly, text, type UpdateRule } from "./kind.ts";
import {
  defaultTemplate,
  immutable,
  nonNegative,
  notMoreThan100Percent,
  validateIntOrPercent,
  validateSelectorAndTemplate,
} from "./pod-template.ts";

/** A new object of a controller: the first generation, and a status that only its controller writes. */
const firstGeneration =
  (status: Json) =>
  (object: StoredObject): void => {
    object.metadata.generation = 1;
    object.status = { ...status };
  };

const specOnly = (validate: (object: StoredObject) => FieldCause[], fixed: readonly string[]): UpdateRule => ({
  prepare(next, old) {
    keepStatus(next, old);
    bumpGeneration(next, old);
  },
  validate: (next, old) => [
    ...validate(next),
    ...fixed.flatMap((field) => immutable(`spec.${field}`, next.spec[field], old.spec[field])),
  ],
});

const isZero = (value: Json): boolean => value === 0 || value === "0%";
const selector = { selector: (object: StoredObject): Json => object.spec.selector };

function validateDeployment({ spec }: StoredObject): FieldCause[] {
  const { strategy } = spec;
  const causes = [...nonNegative("spec.replicas", spec.replicas), ...validateSelectorAndTemplate(spec, "deployment")];
  if (strategy.type === "Recreate" && strategy.rollingUpdate) {
    causes.push(
      forbiddenField("spec.strategy.rollingUpdate", "may not be specified when strategy `type` is 'Recreate'"),
    );
  } else if (strategy.type === "RollingUpdate") {
    const at = "spec.strategy.rollingUpdate";
    const { maxUnavailable, maxSurge } = strategy.rollingUpdate;
    causes.push(...validateIntOrPercent(`${at}.maxUnavailable`, maxUnavailable));
    causes.push(...validateIntOrPercent(`${at}.maxSurge`, maxSurge));
    if (isZero(maxUnavailable) && isZero(maxSurge))
      causes.push(invalidValue(`${at}.maxUnavailable`, maxUnavailable, "may not be 0 when `maxSurge` is 0"));
    causes.push(...notMoreThan100Percent(`${at}.maxUnavailable`, maxUnavailable));
  } else if (strategy.type !== "Recreate") {
    causes.push(notSupported("spec.strategy", strategy, ["Recreate", "RollingUpdate"]));
  }
  causes.push(...nonNegative("spec.minReadySeconds", spec.minReadySeconds));
  causes.push(...nonNegative("spec.revisionHistoryLimit", spec.revisionHistoryLimit));
  causes.push(...nonNegative("spec.progressDeadlineSeconds", spec.progressDeadlineSeconds));
  if (spec.progressDeadlineSeconds <= (spec.minReadySeconds ?? 0)) {
    causes.push(
      invalidValue(
        "spec.progressDeadlineSeconds",
        spec.progressDeadlineSeconds,
        "must be greater than minReadySeconds",
      ),
    );
  }
  return causes;
}

const deployments = defineKind({
  group: "apps",
  kind: "Deployment",
  resource: "deployments",
  shortNames: ["deploy"],
  categories: ["all"],
  scale: selector,
  setDefaults(deployment) {
    const spec = (deployment.spec ??= {});
    spec.replicas ??= 1;
    defaultTemplate(spec);
    spec.strategy ??= {};
    spec.strategy.type ||= "RollingUpdate";
    if (spec.strategy.type === "RollingUpdate")
      spec.strategy.rollingUpdate = { maxUnavailable: "25%", maxSurge: "25%", ...spec.strategy.rollingUpdate };
    spec.revisionHistoryLimit ??= 10;
    spec.progressDeadlineSeconds ??= 600;
  },
  prepareCreate: firstGeneration({}),
  validate: validateDeployment,
  update: {
    prepare(next, old) {
      keepStatus(next, old);
      bumpGeneration(next, old);
      // Its controller copies them to the ReplicaSet: for a Deployment they are part of what is wished for.
      if (!jsonEqual(next.metadata.annotations, old.metadata.annotations))
        next.metadata.generation = (old.metadata.generation ?? 0) + 1;
    },
    validate: (next, old) => [
      ...validateDeployment(next),
      ...immutable("spec.selector", next.spec.selector, old.spec.selector),
    ],
  },
  subresources: { status: statusOnly },
});

const validateReplicaSet = ({ spec }: StoredObject): FieldCause[] => [
  ...nonNegative("spec.replicas", spec.replicas),
  ...nonNegative("spec.minReadySeconds", spec.minReadySeconds),
  // The words are Kubernetes' own: its ReplicaSets say "deployment" here.
  ...validateSelectorAndTemplate(spec, "deployment"),
];

const replicaSets = defineKind({
  group: "apps",
  kind: "ReplicaSet",
  resource: "replicasets",
  shortNames: ["rs"],
  categories: ["all"],
  scale: selector,
  fields: { "status.replicas": (o) => text(o.status?.replicas ?? 0) },
  setDefaults(set) {
    const spec = (set.spec ??= {});
    spec.replicas ??= 1;
    defaultTemplate(spec);
  },
  prepareCreate: firstGeneration({ replicas: 0 }),
  validate: validateReplicaSet,
  update: specOnly(validateReplicaSet, ["selector"]),
  subresources: { status: statusOnly },
});

/** Its pods have the volumes of its claims besides their own. */
function withClaims(spec: Json): Json {
  const { template, volumeClaimTemplates = [] } = spec;
  const volumes = (template.spec.volumes ?? []) as Json[];
  const claims = (volumeClaimTemplates as Json[])
    .map(({ metadata }) => ({ name: metadata?.name, persistentVolumeClaim: { claimName: metadata?.name } }))
    .filter(({ name }) => !volumes.some((each) => each.name === name));
  if (claims.length === 0) return spec;
  return { ...spec, template: { ...template, spec: { ...template.spec, volumes: [...volumes, ...claims] } } };
}

function validateStatefulSet({ spec }: StoredObject): FieldCause[] {
  const causes: FieldCause[] = [];
  if (!["OrderedReady", "Parallel"].includes(spec.podManagementPolicy))
    causes.push(
      invalidValue("spec.podManagementPolicy", spec.podManagementPolicy, "must be 'OrderedReady' or 'Parallel'"),
    );
  const { type, rollingUpdate } = spec.updateStrategy;
  if (type === "OnDelete" && rollingUpdate)
    causes.push(
      invalidValue(
        "spec.updateStrategy.rollingUpdate",
        rollingUpdate,
        "only allowed for updateStrategy 'RollingUpdate'",
      ),
    );
  if (!["OnDelete", "RollingUpdate"].includes(type))
    causes.push(invalidValue("spec.updateStrategy", spec.updateStrategy, "must be 'RollingUpdate' or 'OnDelete'"));
  causes.push(...nonNegative("spec.updateStrategy.rollingUpdate.partition", rollingUpdate?.partition));
  causes.push(...nonNegative("spec.replicas", spec.replicas));
  causes.push(...nonNegative("spec.minReadySeconds", spec.minReadySeconds));
  causes.push(...nonNegative("spec.ordinals.start", spec.ordinals?.start));
  return [...causes, ...validateSelectorAndTemplate(withClaims(spec), "statefulset")];
}

const statefulSets = defineKind({
  group: "apps",
  kind: "StatefulSet",
  resource: "statefulsets",
  shortNames: ["sts"],
  categories: ["all"],
  scale: selector,
  setDefaults(set) {
    const spec = (set.spec ??= {});
    spec.replicas ??= 1;
    defaultTemplate(spec);
    spec.podManagementPolicy ||= "OrderedReady";
    spec.updateStrategy ??= {};
    if (!spec.updateStrategy.type) {
      spec.updateStrategy.type = "RollingUpdate";
      spec.updateStrategy.rollingUpdate ??= {};
    }
    if (spec.updateStrategy.rollingUpdate) spec.updateStrategy.rollingUpdate.partition ??= 0;
    spec.persistentVolumeClaimRetentionPolicy = {
      whenDeleted: "Retain",
      whenScaled: "Retain",
      ...spec.persistentVolumeClaimRetentionPolicy,
    };
    spec.revisionHistoryLimit ??= 10;
    for (const claim of spec.volumeClaimTemplates ?? []) {
      claim.apiVersion ??= "v1";
      claim.kind ??= "PersistentVolumeClaim";
      claim.spec ??= {};
      claim.spec.volumeMode ??= "Filesystem";
      claim.status ??= {};
      claim.status.phase ||= "Pending";
    }
  },
  prepareCreate: firstGeneration({ replicas: 0, availableReplicas: 0 }),
  validate: validateStatefulSet,
  update: specOnly(validateStatefulSet, ["selector", "volumeClaimTemplates", "serviceName", "podManagementPolicy"]),
  subresources: { status: statusOnly },
});

function validateDaemonSet({ spec }: StoredObject): FieldCause[] {
  const causes = validateSelectorAndTemplate(spec, "daemonset");
  causes.push(...nonNegative("spec.minReadySeconds", spec.minReadySeconds));
  const { type, rollingUpdate } = spec.updateStrategy;
  if (type === "RollingUpdate") {
    const at = "spec.updateStrategy.rollingUpdate";
    const { maxUnavailable, maxSurge } = rollingUpdate;
    causes.push(...validateIntOrPercent(`${at}.maxUnavailable`, maxUnavailable));
    causes.push(...validateIntOrPercent(`${at}.maxSurge`, maxSurge));
    if (!isZero(maxUnavailable) && !isZero(maxSurge))
      causes.push(invalidValue(`${at}.maxSurge`, maxSurge, "may not be set when maxUnavailable is non-zero"));
    if (isZero(maxUnavailable) && isZero(maxSurge))
      causes.push(required(`${at}.maxUnavailable`, "cannot be 0 when maxSurge is 0"));
  } else if (type !== "OnDelete") {
    causes.push(notSupported("spec.updateStrategy", spec.updateStrategy, ["OnDelete", "RollingUpdate"]));
  }
  return causes;
}

const daemonSets = defineKind({
  group: "apps",
  kind: "DaemonSet",
  resource: "daemonsets",
  shortNames: ["ds"],
  categories: ["all"],
  setDefaults(set) {
    const spec = (set.spec ??= {});
    defaultTemplate(spec);
    spec.updateStrategy ??= {};
    spec.updateStrategy.type ||= "RollingUpdate";
    if (spec.updateStrategy.type === "RollingUpdate")
      spec.updateStrategy.rollingUpdate = { maxUnavailable: 1, maxSurge: 0, ...spec.updateStrategy.rollingUpdate };
    spec.revisionHistoryLimit ??= 10;
  },
  prepareCreate(set) {
    firstGeneration({ currentNumberScheduled: 0, numberMisscheduled: 0, desiredNumberScheduled: 0, numberReady: 0 })(
      set,
    );
    // Of extensions/v1beta1, and still there: it counts the versions of the template.
    set.metadata.annotations = {
      ...set.metadata.annotations,
      "deprecated.daemonset.template.generation": "1",
    };
  },
  validate: validateDaemonSet,
  update: {
    prepare(next, old) {
      keepStatus(next, old);
      bumpGeneration(next, old);
      const key = "deprecated.daemonset.template.generation";
      const before = Number(old.metadata.annotations?.[key] ?? 0);
      const changed = !jsonEqual(next.spec.template, old.spec.template);
      next.metadata.annotations = { ...next.metadata.annotations, [key]: String(changed ? before + 1 : before) };
    },
    validate: (next, old) => [
      ...validateDaemonSet(next),
      ...immutable("spec.selector", next.spec.selector, old.spec.selector),
    ],
  },
  subresources: { status: statusOnly },
});

const controllerRevisions = defineKind({
  group: "apps",
  kind: "ControllerRevision",
  resource: "controllerrevisions",
  update: {
    prepare: () => {},
    validate: (next, old) => immutable("data", next.data, old.data),
  },
});

/** In the order of discovery. */
export const workloadKinds = [controllerRevisions, daemonSets, deployments, replicaSets, statefulSets];
