/**
 * The kinds that this server stores, and what is particular to each: defaults, admission, validation, update rules of the
 * object and its subresources. Everything else about an object is the same for all kinds and lives in `rest.ts`.
 */
import { jsonEqual, type Json, type StoredObject } from "../objects/object.ts";
import {
  admitPod,
  defaultPod,
  initialPodStatus,
  isPodTerminal,
  preserveObservedGeneration,
  readmitPod,
  validateEphemeralContainersUpdate,
  validatePodSpec,
  validatePodStatusUpdate,
  validatePodUpdate,
  validateResize,
} from "./pod-rules.ts";
import {
  forbiddenField,
  invalidValue,
  notSupported,
  required,
  type FieldCause,
  type Subject,
} from "../objects/errors.ts";
import type { NameRule } from "../objects/validation.ts";

/** What admission may look up while an object is created. */
export interface AdmissionContext {
  namespace: string;
  find(resource: string, namespace: string | undefined, name: string): StoredObject | undefined;
  list(resource: string): StoredObject[];
  randomSuffix(): string;
  /** Who asks. */
  user: { username: string; groups: string[]; uid?: string };
}

/** How an update through one endpoint treats the object: `prepare` changes `next`, which it owns. */
export interface UpdateRule {
  prepare(next: StoredObject, old: StoredObject): void;
  validate?(next: StoredObject, old: StoredObject): FieldCause[];
}

export interface Kind extends Subject {
  version: string;
  singular: string;
  /** client-node's class with the fields of this kind. */
  model: string;
  namespaced: boolean;
  shortNames: readonly string[];
  categories: readonly string[];
  verbs: readonly string[];
  nameRule: NameRule;
  /** PUT to a name that does not exist creates it. */
  createOnUpdate: boolean;
  /** PUT without resourceVersion overwrites. */
  unconditionalUpdate: boolean;
  /** DELETE answers with the object instead of a Status. */
  returnsDeleted: boolean;
  /** Fields that a field selector may name, beside metadata.name and metadata.namespace. */
  fields: Readonly<Record<string, (object: StoredObject) => string>>;
  /** Objects that DELETE ends gracefully: the grace in seconds that applies, given what the client asked for. */
  gracePeriod?: (object: StoredObject, requested: number | undefined) => number;
  setDefaults(object: Json): void;
  /** @returns why the object is forbidden, or undefined. Runs before validation and may change the object */
  admit?(object: Json, context: AdmissionContext): string | undefined;
  prepareCreate(object: StoredObject, context: AdmissionContext): void;
  validate(object: StoredObject): FieldCause[];
  update: UpdateRule;
  /** Subresources that read and write the object itself, such as `status`. */
  subresources: Readonly<Record<string, UpdateRule>>;
}

/** `group/resource`: the name of a kind in storage. */
export const storageName = (kind: Pick<Kind, "group" | "resource">): string => `${kind.group}/${kind.resource}`;
export const apiVersionOf = (kind: Pick<Kind, "group" | "version">): string =>
  kind.group === "" ? kind.version : `${kind.group}/${kind.version}`;
export const objectKey = (namespace: string | undefined, name: string): string =>
  namespace === undefined ? name : `${namespace}/${name}`;

const allVerbs = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"] as const;

const keepStatus = (next: StoredObject, old: StoredObject): void => {
  if (old.status === undefined) delete next.status;
  else next.status = old.status;
};

/** `/status`: the spec stays as it is. */
const statusOnly: UpdateRule = {
  prepare(next, old) {
    if (old.spec === undefined) delete next.spec;
    else next.spec = old.spec;
  },
};

type Particulars = Pick<Kind, "kind" | "resource"> & Partial<Kind>;

function defineKind(p: Particulars): Kind {
  const hasStatus = p.subresources?.["status"] !== undefined;
  return {
    group: "",
    version: "v1",
    singular: p.kind.toLowerCase(),
    model: `V1${p.kind}`,
    namespaced: true,
    shortNames: [],
    categories: [],
    verbs: allVerbs,
    nameRule: "subdomain",
    createOnUpdate: false,
    unconditionalUpdate: true,
    returnsDeleted: false,
    fields: {},
    setDefaults: () => {},
    prepareCreate(object) {
      if (hasStatus) delete object.status;
    },
    validate: () => [],
    update: { prepare: (next, old) => hasStatus && keepStatus(next, old) },
    subresources: {},
    ...p,
  };
}

const text = (value: Json): string => String(value ?? "");

const bumpGeneration = (next: StoredObject, old: StoredObject): void => {
  if (!jsonEqual(next.spec, old.spec)) next.metadata.generation = (old.metadata.generation ?? 0) + 1;
};

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
    if (!pod.spec.nodeName || isPodTerminal(pod)) return 0;
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

/** The addresses that `spec.clusterIP` is taken from: kubeadm's default range. */
export const SERVICE_NETWORK = "10.96";

function admitService(service: Json, context: AdmissionContext): undefined {
  const spec = service.spec;
  if (spec.type === "ExternalName") return;
  spec.ipFamilies ??= ["IPv4"];
  spec.ipFamilyPolicy ??= "SingleStack";
  if (!spec.clusterIP) {
    const taken = new Set(context.list("/services").map((s) => s.spec?.clusterIP as string));
    for (let host = 10; host < 65_000 && !spec.clusterIP; host++) {
      const candidate = `${SERVICE_NETWORK}.${host >> 8}.${host & 255}`;
      if (!taken.has(candidate)) spec.clusterIP = candidate;
    }
  }
  spec.clusterIPs = [spec.clusterIP];
  if (spec.type === "NodePort" || spec.type === "LoadBalancer") {
    const taken = new Set(
      context.list("/services").flatMap((s) => (s.spec?.ports ?? []).map((p: Json) => p.nodePort as number)),
    );
    for (const port of spec.ports ?? []) {
      for (let candidate = 30_000; !port.nodePort && candidate <= 32_767; candidate++)
        if (!taken.has(candidate)) port.nodePort = candidate;
      taken.add(port.nodePort);
    }
  }
}

const services = defineKind({
  kind: "Service",
  resource: "services",
  shortNames: ["svc"],
  categories: ["all"],
  nameRule: "label",
  createOnUpdate: true,
  returnsDeleted: true,
  fields: { "spec.clusterIP": (o) => text(o.spec?.clusterIP), "spec.type": (o) => text(o.spec?.type) },
  setDefaults(service) {
    const spec = (service.spec ??= {});
    spec.sessionAffinity ||= "None";
    spec.type ||= "ClusterIP";
    for (const port of spec.ports ?? []) {
      port.protocol ||= "TCP";
      port.targetPort ||= port.port;
    }
    if (spec.type === "NodePort" || spec.type === "LoadBalancer") spec.externalTrafficPolicy ??= "Cluster";
    if (spec.type !== "ExternalName") spec.internalTrafficPolicy ??= "Cluster";
    service.status ??= { loadBalancer: {} };
  },
  admit: admitService,
  prepareCreate(service) {
    service.status = { loadBalancer: {} };
  },
  validate(service) {
    const { ports = [], clusterIP, type } = service.spec;
    if (ports.length === 0) return clusterIP === "None" || type === "ExternalName" ? [] : [required("spec.ports")];
    const unnamed = ports.length > 1 ? [...ports.keys()].filter((i) => !ports[i].name) : [];
    return unnamed.map((i) => required(`spec.ports[${i}].name`));
  },
  update: {
    prepare(next, old) {
      keepStatus(next, old);
      for (const field of ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"])
        next.spec[field] ??= old.spec[field];
    },
    validate: (next, old) =>
      old.spec.clusterIP && next.spec.clusterIP !== old.spec.clusterIP && next.spec.type !== "ExternalName"
        ? [invalidValue("spec.clusterIPs[0]", next.spec.clusterIP, "may not change once set")]
        : [],
  },
  subresources: { status: statusOnly },
});

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

const endpoints = defineKind({
  kind: "Endpoints",
  resource: "endpoints",
  singular: "endpoints",
  shortNames: ["ep"],
  createOnUpdate: true,
  setDefaults(endpoints) {
    for (const subset of endpoints.subsets ?? []) for (const port of subset.ports ?? []) port.protocol ??= "TCP";
  },
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
  pods,
  secrets,
  serviceAccounts,
  services,
  certificateSigningRequests,
  leases,
  runtimeClasses,
  priorityClasses,
  csiNodes,
];

const byName = new Map(kinds.map((kind) => [`${kind.group}/${kind.version}/${kind.resource}`, kind]));

export const findKind = (group: string, version: string, resource: string): Kind | undefined =>
  byName.get(`${group}/${version}/${resource}`);
