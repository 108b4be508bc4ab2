/**
 * The kinds that this server stores, and what is particular to each: defaults, admission, validation, update rules of
 * the object and its subresources. Everything else about an object is the same for all kinds and lives in
 * `object-api.ts`.
 */
import { isTerminal } from "../../kube/pod.ts";
import { jsonEqual, type Json, type StoredObject } from "../objects/object.ts";
import {
  admitPod,
  defaultPod,
  initialPodStatus,
  preserveObservedGeneration,
  readmitPod,
  validateEphemeralContainersUpdate,
  validatePodSpec,
  validatePodStatusUpdate,
  validatePodUpdate,
  validateResize,
} from "./pod-rules.ts";
import { forbiddenField, invalidValue, notSupported, required, type FieldCause } from "../objects/errors.ts";
import { jobKinds } from "./jobs.ts";
import { horizontalPodAutoscalers } from "./autoscalers.ts";
import { policyKinds } from "./policies.ts";
import { endpoints, services } from "./services.ts";
import { CLAIM_PROTECTION, defaultClass, storageKinds } from "./storage.ts";
import { workloadKinds } from "./workloads.ts";
import { allVerbs, apiVersionOf, bumpGeneration, defineKind, keepStatus, statusOnly, text, type Kind } from "./kind.ts";

const pods = defineKind({
  kind: "Pod",
  resource: "pods",
  shortNames: ["po"],
  categories: ["all"],
  returnsDeleted: true,
  fields: {
    "spec.nodeName": (o) => text(o.spec?.nodeName),
    "spec.restartPolicy": (o) => text(o.spec?.restartPolicy),
    "spec.schedulerName": (o) => text(o.spec?.schedulerName),
    "spec.serviceAccountName": (o) => text(o.spec?.serviceAccountName),
    "spec.hostNetwork": (o) => String(o.spec?.hostNetwork ?? false),
    "status.phase": (o) => text(o.status?.phase),
    "status.podIP": (o) => text(o.status?.podIP),
    "status.nominatedNodeName": (o) => text(o.status?.nominatedNodeName),
  },
  gracePeriod(pod, requested) {
    if (!pod.spec.nodeName || isTerminal(pod)) return 0;
    const seconds = requested ?? (pod.spec.terminationGracePeriodSeconds as number | undefined) ?? 0;
    return seconds < 0 ? 1 : seconds;
  },
  setDefaults: defaultPod,
  admit: (pod, context) =>
    admitPod(pod, context.namespace, {
      serviceAccount: (name) => context.find("/serviceaccounts", context.namespace, name),
      priorityClass: (name) => context.find("scheduling.k8s.io/priorityclasses", undefined, name),
      defaultPriorityClass: () =>
        context.list("scheduling.k8s.io/priorityclasses").find((c) => c["globalDefault"] === true),
      runtimeClass: (name) => context.find("node.k8s.io/runtimeclasses", undefined, name),
      randomSuffix: () => context.randomSuffix(),
    }),
  prepareCreate(pod) {
    pod.metadata.generation = 1;
    pod.status = initialPodStatus(pod);
  },
  validate: (pod) => [
    ...validatePodSpec(pod.spec),
    ...(pod.spec.ephemeralContainers?.length
      ? [forbiddenField("spec.ephemeralContainers", "cannot be set on create")]
      : []),
  ],
  update: {
    prepare(next, old) {
      keepStatus(next, old);
      readmitPod(next, old);
      bumpGeneration(next, old);
    },
    validate: (next, old) => [...validatePodSpec(next.spec), ...validatePodUpdate(next, old)],
  },
  subresources: {
    status: {
      prepare(next, old) {
        next.spec = old.spec;
        next.status ??= {};
        if (old.metadata.ownerReferences) next.metadata.ownerReferences = old.metadata.ownerReferences;
        else delete next.metadata.ownerReferences;
        next.status.qosClass ??= old.status?.qosClass;
        preserveObservedGeneration(next.status, old.status);
      },
      validate: validatePodStatusUpdate,
    },
    ephemeralcontainers: {
      prepare(next, old) {
        const added = next.spec.ephemeralContainers;
        next.spec = { ...old.spec, ...(added && { ephemeralContainers: added }) };
        keepStatus(next, old);
        next.metadata = { ...old.metadata };
        bumpGeneration(next, old);
      },
      validate: (next, old) => [...validatePodSpec(next.spec), ...validateEphemeralContainersUpdate(next, old)],
    },
    resize: {
      prepare(next, old) {
        const resized = (list: "containers" | "initContainers"): Json =>
          old.spec[list] && {
            [list]: old.spec[list].map((before: Json) => {
              const asked = next.spec[list]?.find((c: Json) => c.name === before.name);
              return {
                ...before,
                ...(asked?.resources && { resources: asked.resources }),
                ...(asked?.resizePolicy && { resizePolicy: asked.resizePolicy }),
              };
            }),
          };
        next.spec = {
          ...old.spec,
          ...resized("containers"),
          ...resized("initContainers"),
          ...(next.spec.resources && { resources: next.spec.resources }),
        };
        keepStatus(next, old);
        next.metadata = { ...old.metadata };
        bumpGeneration(next, old);
      },
      validate: (next, old) => [...validatePodSpec(next.spec), ...validateResize(next, old)],
    },
  },
});

const nodes = defineKind({
  kind: "Node",
  resource: "nodes",
  namespaced: false,
  shortNames: ["no"],
  fields: { "spec.unschedulable": (o) => String(o.spec?.unschedulable ?? false) },
  setDefaults(node) {
    node.spec ??= {};
    node.status ??= {};
    if (!node.status.allocatable && node.status.capacity) node.status.allocatable = { ...node.status.capacity };
  },
  // A Node's status may come with its creation, unlike a Pod's: kubelets register that way.
  prepareCreate: () => {},
  validate: (node) => validateTaints(node),
  update: {
    prepare: keepStatus,
    validate: (next, old) => [
      ...validateTaints(next),
      ...(old.spec.providerID && next.spec.providerID !== old.spec.providerID
        ? [forbiddenField("spec.providerID", 'node updates may not change providerID except from "" to valid')]
        : []),
    ],
  },
  subresources: { status: statusOnly },
});

function validateTaints(node: StoredObject): FieldCause[] {
  const seen = new Set<string>();
  return (node.spec.taints ?? []).flatMap((taint: Json, i: number): FieldCause[] => {
    const at = `metadata.taints[${i}]`;
    const causes: FieldCause[] = [];
    if (!taint.key) causes.push(required(`${at}.key`));
    if (!["NoSchedule", "PreferNoSchedule", "NoExecute"].includes(taint.effect)) {
      causes.push(
        taint.effect
          ? notSupported(`${at}.effect`, taint.effect, ["NoSchedule", "PreferNoSchedule", "NoExecute"])
          : required(`${at}.effect`),
      );
    }
    const id = `${taint.key}:${taint.effect}`;
    if (seen.has(id))
      causes.push({
        reason: "FieldValueDuplicate",
        field: at,
        message: `Duplicate value: {"Key":${JSON.stringify(taint.key)},"Value":${JSON.stringify(taint.value ?? "")},"Effect":${JSON.stringify(taint.effect)},"TimeAdded":null}: taints must be unique by key and effect pair`,
      });
    seen.add(id);
    return causes;
  });
}

const namespaces = defineKind({
  kind: "Namespace",
  resource: "namespaces",
  namespaced: false,
  shortNames: ["ns"],
  verbs: allVerbs.filter((verb) => verb !== "deletecollection"),
  nameRule: "label",
  returnsDeleted: true,
  fields: { "status.phase": (o) => text(o.status?.phase) },
  setDefaults(namespace) {
    namespace.spec ??= {};
    namespace.status ??= {};
    namespace.status.phase ||= "Active";
    if (namespace.metadata.name)
      namespace.metadata.labels = {
        ...namespace.metadata.labels,
        "kubernetes.io/metadata.name": namespace.metadata.name,
      };
  },
  prepareCreate(namespace) {
    namespace.spec = { finalizers: ["kubernetes"] };
    namespace.status = { phase: "Active" };
  },
  update: {
    prepare(next, old) {
      next.spec = old.spec;
      keepStatus(next, old);
    },
  },
  subresources: {
    status: statusOnly,
    finalize: {
      prepare(next, old) {
        keepStatus(next, old);
      },
    },
  },
});

const events = defineKind({
  kind: "Event",
  resource: "events",
  model: "CoreV1Event",
  shortNames: ["ev"],
  createOnUpdate: true,
  fields: {
    "involvedObject.kind": (o) => text(o["involvedObject"]?.kind),
    "involvedObject.namespace": (o) => text(o["involvedObject"]?.namespace),
    "involvedObject.name": (o) => text(o["involvedObject"]?.name),
    "involvedObject.uid": (o) => text(o["involvedObject"]?.uid),
    "involvedObject.apiVersion": (o) => text(o["involvedObject"]?.apiVersion),
    "involvedObject.resourceVersion": (o) => text(o["involvedObject"]?.resourceVersion),
    "involvedObject.fieldPath": (o) => text(o["involvedObject"]?.fieldPath),
    reason: (o) => text(o["reason"]),
    reportingComponent: (o) => text(o["reportingComponent"]),
    source: (o) => text(o["source"]?.component || o["reportingComponent"]),
    type: (o) => text(o["type"]),
  },
  validate(event) {
    const involved = event["involvedObject"] ?? {};
    const expected = involved.namespace || "default";
    return event.metadata.namespace === expected
      ? []
      : [invalidValue("involvedObject.namespace", involved.namespace ?? "", "does not match event.namespace")];
  },
});

const secrets = defineKind({
  kind: "Secret",
  resource: "secrets",
  fields: { type: (o) => text(o["type"]) },
  setDefaults(secret) {
    secret.type ||= "Opaque";
    if (secret.stringData) {
      const encoded = Object.entries(secret.stringData as Record<string, string>).map(([k, v]) => [
        k,
        Buffer.from(v).toString("base64"),
      ]);
      secret.data = { ...secret.data, ...Object.fromEntries(encoded) };
      delete secret.stringData;
    }
  },
  validate: (secret) => [...dataKeys(secret.data, "data"), ...typedKeys(secret)],
  update: {
    prepare: () => {},
    validate: (next, old) => [
      ...dataKeys(next.data, "data"),
      ...(next["type"] !== old["type"] ? [invalidValue("type", next["type"], "field is immutable")] : []),
      ...immutableData(next, old),
    ],
  },
});

function typedKeys(secret: StoredObject): FieldCause[] {
  const wanted: Record<string, string[]> = {
    "kubernetes.io/dockerconfigjson": [".dockerconfigjson"],
    "kubernetes.io/dockercfg": [".dockercfg"],
    "kubernetes.io/tls": ["tls.crt", "tls.key"],
  };
  return (wanted[secret["type"]] ?? [])
    .filter((key) => secret.data?.[key] === undefined)
    .map((key) => required(`data[${key}]`));
}

const configMaps = defineKind({
  kind: "ConfigMap",
  resource: "configmaps",
  shortNames: ["cm"],
  validate: (map) => [...dataKeys(map.data, "data"), ...dataKeys(map["binaryData"], "binaryData")],
  update: {
    prepare: () => {},
    validate: (next, old) => [...dataKeys(next.data, "data"), ...immutableData(next, old)],
  },
});

const dataKeys = (data: Json, field: string): FieldCause[] =>
  Object.keys(data ?? {})
    .filter((key) => !/^[-._a-zA-Z0-9]+$/.test(key))
    .map((key) =>
      invalidValue(
        `${field}[${key}]`,
        key,
        "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')",
      ),
    );

function immutableData(next: StoredObject, old: StoredObject): FieldCause[] {
  if (old["immutable"] !== true) return [];
  const causes: FieldCause[] = [];
  if (next["immutable"] !== true)
    causes.push(forbiddenField("immutable", "field is immutable when `immutable` is set"));
  if (!jsonEqual(next.data, old.data))
    causes.push(forbiddenField("data", "field is immutable when `immutable` is set"));
  return causes;
}

const leases = defineKind({
  group: "coordination.k8s.io",
  kind: "Lease",
  resource: "leases",
  createOnUpdate: true,
  unconditionalUpdate: false,
  validate(lease) {
    const seconds = lease.spec?.leaseDurationSeconds as number | undefined;
    return seconds !== undefined && seconds <= 0
      ? [invalidValue("spec.leaseDurationSeconds", seconds, "must be greater than 0")]
      : [];
  },
});

const certificateSigningRequests = defineKind({
  group: "certificates.k8s.io",
  kind: "CertificateSigningRequest",
  resource: "certificatesigningrequests",
  namespaced: false,
  shortNames: ["csr"],
  fields: { "spec.signerName": (o) => text(o.spec?.signerName) },
  setDefaults(request) {
    request.spec ??= {};
    request.spec.usages ??= ["digital signature", "key encipherment"];
    request.status ??= {};
  },
  prepareCreate(request, context) {
    request.spec = {
      ...request.spec,
      username: context.user.username,
      groups: context.user.groups,
      ...(context.user.uid && { uid: context.user.uid }),
    };
    request.status = {};
  },
  validate(request) {
    const causes: FieldCause[] = [];
    if (!request.spec.signerName) causes.push(required("spec.signerName"));
    if (
      !/-----BEGIN (NEW )?CERTIFICATE REQUEST-----/.test(Buffer.from(request.spec.request ?? "", "base64").toString())
    ) {
      causes.push(
        invalidValue("spec.request", request.spec.request ?? "", "PEM block type must be CERTIFICATE REQUEST"),
      );
    }
    return causes;
  },
  update: {
    prepare(next, old) {
      next.spec = old.spec;
      keepStatus(next, old);
    },
  },
  subresources: {
    // Approval owns the conditions Approved and Denied, status owns the certificate.
    approval: {
      prepare(next, old) {
        next.spec = old.spec;
        next.status = {
          ...old.status,
          ...(next.status?.conditions && { conditions: stampConditions(next.status.conditions, old) }),
        };
      },
    },
    status: {
      prepare(next, old) {
        next.spec = old.spec;
        const kept = (old.status?.conditions ?? []).filter((c: Json) => c.type === "Approved" || c.type === "Denied");
        const others = (next.status?.conditions ?? []).filter(
          (c: Json) => c.type !== "Approved" && c.type !== "Denied",
        );
        const conditions = [...kept, ...stampConditions(others, old)];
        next.status = { ...next.status, ...(conditions.length > 0 && { conditions }) };
      },
    },
  },
});

const stampConditions = (conditions: Json[], old: StoredObject): Json[] =>
  conditions.map((c) => {
    const before = old.status?.conditions?.find((b: Json) => b.type === c.type);
    return { ...c, lastTransitionTime: c.lastTransitionTime ?? before?.lastTransitionTime ?? c.lastUpdateTime ?? null };
  });

const serviceAccounts = defineKind({
  kind: "ServiceAccount",
  resource: "serviceaccounts",
  shortNames: ["sa"],
  returnsDeleted: true,
});

const csiNodes = defineKind({
  group: "storage.k8s.io",
  kind: "CSINode",
  resource: "csinodes",
  namespaced: false,
  unconditionalUpdate: false,
  returnsDeleted: true,
  setDefaults(node) {
    node.spec ??= {};
    node.spec.drivers ??= [];
  },
});

const runtimeClasses = defineKind({
  group: "node.k8s.io",
  kind: "RuntimeClass",
  resource: "runtimeclasses",
  namespaced: false,
  createOnUpdate: true,
  unconditionalUpdate: false,
  validate: (runtimeClass) => (runtimeClass["handler"] ? [] : [required("handler")]),
  update: {
    prepare: () => {},
    validate: (next, old) =>
      next["handler"] === old["handler"] ? [] : [invalidValue("handler", next["handler"], "field is immutable")],
  },
});

const priorityClasses = defineKind({
  group: "scheduling.k8s.io",
  kind: "PriorityClass",
  resource: "priorityclasses",
  namespaced: false,
  shortNames: ["pc"],
  setDefaults(priorityClass) {
    priorityClass.preemptionPolicy ??= "PreemptLowerPriority";
    priorityClass.value ??= 0;
  },
  prepareCreate(priorityClass) {
    priorityClass.metadata.generation = 1;
  },
  update: {
    prepare: () => {},
    validate: (next, old) =>
      next["value"] === old["value"] ? [] : [invalidValue("value", next["value"], "field is immutable")],
  },
});

const persistentVolumeClaims = defineKind({
  kind: "PersistentVolumeClaim",
  resource: "persistentvolumeclaims",
  shortNames: ["pvc"],
  returnsDeleted: true,
  setDefaults(claim) {
    claim.spec ??= {};
    claim.spec.volumeMode ??= "Filesystem";
    claim.status ??= {};
    claim.status.phase ||= "Pending";
  },
  admit(claim, { list }) {
    // As the real one's admission does: what uses it comes first.
    claim.metadata.finalizers = [...(claim.metadata.finalizers ?? []), CLAIM_PROTECTION];
    const name = claim.spec.storageClassName === undefined && defaultClass(list("storage.k8s.io/storageclasses"));
    if (name) claim.spec.storageClassName = name;
    return undefined;
  },
  prepareCreate(claim) {
    claim.status = { phase: "Pending" };
  },
  validate(claim) {
    const causes: FieldCause[] = [];
    if (!claim.spec.accessModes?.length)
      causes.push(required("spec.accessModes", "at least 1 access mode is required"));
    if (!claim.spec.resources?.requests?.storage) causes.push(required("spec.resources[storage]"));
    return causes;
  },
  subresources: { status: statusOnly },
});

/** Every kind in storage, in the order of discovery. */
export const kinds: readonly Kind[] = [
  configMaps,
  endpoints,
  events,
  namespaces,
  nodes,
  persistentVolumeClaims,
  storageKinds.persistentVolumes,
  pods,
  secrets,
  serviceAccounts,
  services,
  ...workloadKinds,
  horizontalPodAutoscalers,
  ...jobKinds,
  certificateSigningRequests,
  leases,
  ...policyKinds.filter(({ group }) => group === "discovery.k8s.io"),
  runtimeClasses,
  ...policyKinds.filter(({ group }) => group === "policy"),
  priorityClasses,
  storageKinds.csiDrivers,
  csiNodes,
  storageKinds.storageClasses,
  storageKinds.volumeAttachments,
];

const byName = new Map(kinds.map((kind) => [`${kind.group}/${kind.version}/${kind.resource}`, kind]));

export const findKind = (group: string, version: string, resource: string): Kind | undefined =>
  byName.get(`${group}/${version}/${resource}`);

const byApiVersion = new Map(kinds.map((kind) => [`${apiVersionOf(kind)}/${kind.kind}`, kind]));

/** The kind that an object or a reference names. */
export const kindOf = (reference: { apiVersion: string; kind: string }): Kind | undefined =>
  byApiVersion.get(`${reference.apiVersion}/${reference.kind}`);

/** A kind that this server has for certain. @throws Error when it has not */
export function mustFindKind(group: string, version: string, resource: string): Kind {
  const kind = findKind(group, version, resource);
  if (!kind) throw new Error(`devcluster has no ${group}/${version} ${resource}`);
  return kind;
}
