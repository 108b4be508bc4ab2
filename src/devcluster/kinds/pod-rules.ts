/**
 * What kube-apiserver does to a Pod on its way into storage: defaulting (`pkg/apis/core/v1/defaults.go`), the mutating
 * admission plugins that are on by default, validation, and the update rules of each subresource. Pure functions over
 * JSON.
 */
import { validateContainer } from "./container-rules.ts";
import { isIP } from "node:net";
import { isTerminal } from "../../kube/pod.ts";
import { computeQosClass } from "../../resources/pod-resources.ts";
import { jsonEqual, type Json, type StoredObject } from "../objects/object.ts";
import { duplicate, forbiddenField, invalidValue, notSupported, required, type FieldCause } from "../objects/errors.ts";
import { isDnsLabel, isDnsSubdomain, LABEL_RULE, SUBDOMAIN_RULE } from "../objects/validation.ts";

const SERVICE_ACCOUNT_PATH = "/var/run/secrets/kubernetes.io/serviceaccount";

const allContainers = (spec: Json): Json[] => [
  ...(spec.initContainers ?? []),
  ...(spec.containers ?? []),
  ...(spec.ephemeralContainers ?? []),
];

/** Sets `field` unless it has a value. */
const byDefault = (object: Json, field: string, value: Json): void => {
  object[field] ??= value;
};

/** `latest` when the image names neither tag nor digest. */
function imageTag(image: string): string {
  const name = image.slice(image.lastIndexOf("/") + 1);
  if (name.includes("@")) return "";
  return name.includes(":") ? name.slice(name.indexOf(":") + 1) : "latest";
}

/**
 * Fills the defaults into `pod`, which the caller owns. Applied at every write, as the decoder of kube-apiserver does.
 */
export function defaultPod(pod: Json): void {
  const spec = (pod.spec ??= {});
  defaultPodSpec(spec);
  byDefault(spec, "enableServiceLinks", true);
  if (pod.status) defaultAddresses(pod.status);
  for (const container of [...(spec.containers ?? []), ...(spec.initContainers ?? [])]) {
    const limits = container.resources?.limits;
    if (limits) container.resources.requests = { ...limits, ...container.resources.requests };
  }
}

/** What the template of a controller gets of it (`SetDefaults_PodSpec`): the rest comes when a pod is made of it. */
export function defaultPodSpec(spec: Json): void {
  byDefault(spec, "dnsPolicy", "ClusterFirst");
  byDefault(spec, "restartPolicy", "Always");
  byDefault(spec, "securityContext", {});
  byDefault(spec, "terminationGracePeriodSeconds", 30);
  byDefault(spec, "schedulerName", "default-scheduler");
  if (spec.serviceAccountName) spec.serviceAccount = spec.serviceAccountName;
  else if (spec.serviceAccount) spec.serviceAccountName = spec.serviceAccount;
  for (const container of allContainers(spec)) defaultContainer(container, spec.hostNetwork === true);
  for (const volume of spec.volumes ?? []) defaultVolume(volume);
}

/**
 * `podIP` and `podIPs[0]` are one: where they differ, the single one is meant
 * (`Convert_v1_PodStatus_To_core_PodStatus`).
 */
function defaultAddresses(status: Json): void {
  if (status.podIP && status.podIPs?.[0]?.ip !== status.podIP) status.podIPs = [{ ip: status.podIP }];
  if (!status.podIP && status.podIPs?.length) status.podIP = status.podIPs[0].ip;
}

function defaultContainer(container: Json, hostNetwork: boolean): void {
  byDefault(container, "imagePullPolicy", imageTag(container.image ?? "") === "latest" ? "Always" : "IfNotPresent");
  byDefault(container, "terminationMessagePath", "/dev/termination-log");
  byDefault(container, "terminationMessagePolicy", "File");
  for (const port of container.ports ?? []) {
    byDefault(port, "protocol", "TCP");
    if (hostNetwork) port.hostPort ||= port.containerPort;
  }
  for (const env of container.env ?? [])
    if (env.valueFrom?.fieldRef) byDefault(env.valueFrom.fieldRef, "apiVersion", "v1");
  for (const name of ["livenessProbe", "readinessProbe", "startupProbe"]) {
    const probe = container[name];
    if (!probe) continue;
    probe.timeoutSeconds ||= 1;
    probe.periodSeconds ||= 10;
    probe.successThreshold ||= 1;
    probe.failureThreshold ||= 3;
    defaultHandler(probe);
  }
  for (const name of ["postStart", "preStop"])
    if (container.lifecycle?.[name]) defaultHandler(container.lifecycle[name]);
}

function defaultHandler(handler: Json): void {
  if (handler.httpGet) {
    handler.httpGet.path ||= "/";
    handler.httpGet.scheme ||= "HTTP";
  }
  if (handler.grpc) byDefault(handler.grpc, "service", "");
}

function defaultVolume(volume: Json): void {
  if (Object.keys(volume).length === 1) volume.emptyDir = {};
  for (const source of ["secret", "configMap", "downwardAPI", "projected"])
    if (volume[source]) byDefault(volume[source], "defaultMode", 420);
  if (volume.hostPath) byDefault(volume.hostPath, "type", "");
  for (const item of volume.downwardAPI?.items ?? []) if (item.fieldRef) byDefault(item.fieldRef, "apiVersion", "v1");
  for (const source of volume.projected?.sources ?? []) {
    if (source.serviceAccountToken) byDefault(source.serviceAccountToken, "expirationSeconds", 3600);
    for (const item of source.downwardAPI?.items ?? []) if (item.fieldRef) byDefault(item.fieldRef, "apiVersion", "v1");
  }
}

/** What admission looks up; `undefined` when there is none. */
interface AdmissionLookups {
  serviceAccount(name: string): StoredObject | undefined;
  priorityClass(name: string): StoredObject | undefined;
  defaultPriorityClass(): StoredObject | undefined;
  runtimeClass(name: string): StoredObject | undefined;
  randomSuffix(): string;
}

/**
 * The mutating admission plugins: ServiceAccount, Priority, DefaultTolerationSeconds, RuntimeClass.
 * @returns why the pod is forbidden, in kube-apiserver's words, or undefined
 */
export function admitPod(pod: Json, namespace: string, lookups: AdmissionLookups): string | undefined {
  const spec = pod.spec;
  const isMirror = pod.metadata.annotations?.["kubernetes.io/config.mirror"] !== undefined;
  return (
    (isMirror ? undefined : admitServiceAccount(spec, namespace, lookups)) ??
    admitPriority(spec, lookups) ??
    admitTolerations(spec) ??
    admitRuntimeClass(spec, lookups)
  );
}

function admitServiceAccount(spec: Json, namespace: string, lookups: AdmissionLookups): string | undefined {
  byDefault(spec, "serviceAccountName", "default");
  spec.serviceAccount = spec.serviceAccountName;
  const account = lookups.serviceAccount(spec.serviceAccountName);
  if (!account)
    return `error looking up service account ${namespace}/${spec.serviceAccountName}: serviceaccount "${spec.serviceAccountName}" not found`;
  if (!spec.imagePullSecrets?.length && account["imagePullSecrets"]?.length)
    spec.imagePullSecrets = structuredClone(account["imagePullSecrets"]);
  if (!(spec.automountServiceAccountToken ?? account["automountServiceAccountToken"] ?? true)) return undefined;

  const containers: Json[] = [...(spec.initContainers ?? []), ...(spec.containers ?? [])];
  const unmounted = containers.filter((c) => !c.volumeMounts?.some((m: Json) => m.mountPath === SERVICE_ACCOUNT_PATH));
  if (unmounted.length === 0) return undefined;
  const name = `kube-api-access-${lookups.randomSuffix()}`;
  for (const container of unmounted) {
    container.volumeMounts = [
      ...(container.volumeMounts ?? []),
      { name, readOnly: true, mountPath: SERVICE_ACCOUNT_PATH },
    ];
  }
  const volume = {
    name,
    projected: {
      sources: [
        // 3607 tells this token from those that users ask for; kubelet and kube-apiserver know the number.
        { serviceAccountToken: { expirationSeconds: 3607, path: "token" } },
        { configMap: { name: "kube-root-ca.crt", items: [{ key: "ca.crt", path: "ca.crt" }] } },
        {
          downwardAPI: {
            items: [{ path: "namespace", fieldRef: { apiVersion: "v1", fieldPath: "metadata.namespace" } }],
          },
        },
      ],
      defaultMode: 420,
    },
  };
  spec.volumes = [...(spec.volumes ?? []), volume];
  return undefined;
}

function admitPriority(spec: Json, lookups: AdmissionLookups): string | undefined {
  const named: string | undefined = spec.priorityClassName;
  const found = named ? lookups.priorityClass(named) : lookups.defaultPriorityClass();
  if (named && !found) return `no PriorityClass with name ${named} was found`;
  const value = found?.["value"] ?? 0;
  if (spec.priority !== undefined && spec.priority !== value) {
    return `the integer value of priority (${spec.priority}) must not be provided in pod spec; priority admission controller computed ${value} from the given PriorityClass name`;
  }
  if (found && !named) spec.priorityClassName = found.metadata.name;
  spec.priority = value;
  byDefault(spec, "preemptionPolicy", found?.["preemptionPolicy"] ?? "PreemptLowerPriority");
  return undefined;
}

function admitTolerations(spec: Json): undefined {
  for (const key of ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"]) {
    const tolerates = (t: Json) => (t.key === key || !t.key) && (t.effect === "NoExecute" || !t.effect);
    if (!spec.tolerations?.some(tolerates)) {
      spec.tolerations = [
        ...(spec.tolerations ?? []),
        { key, operator: "Exists", effect: "NoExecute", tolerationSeconds: 300 },
      ];
    }
  }
}

/** What the same plugins do when a pod is updated: a client that applies its manifest again must not take them back. */
export function readmitPod(next: StoredObject, old: StoredObject): void {
  admitTolerations(next.spec);
  for (const field of ["priority", "preemptionPolicy"])
    if (old.spec[field] !== undefined) byDefault(next.spec, field, old.spec[field]);
}

function admitRuntimeClass(spec: Json, lookups: AdmissionLookups): string | undefined {
  if (!spec.runtimeClassName) return undefined;
  const found = lookups.runtimeClass(spec.runtimeClassName);
  if (!found) return `pod rejected: RuntimeClass "${spec.runtimeClassName}" not found`;
  if (found["overhead"]?.podFixed) spec.overhead = { ...found["overhead"].podFixed };
  if (found["scheduling"]?.nodeSelector)
    spec.nodeSelector = { ...spec.nodeSelector, ...found["scheduling"].nodeSelector };
  if (found["scheduling"]?.tolerations)
    spec.tolerations = [...(spec.tolerations ?? []), ...found["scheduling"].tolerations];
  return undefined;
}

/** The status of a pod that was just created. */
export function initialPodStatus(pod: Json): Json {
  const gated = pod.spec.schedulingGates?.length > 0;
  return {
    phase: "Pending",
    ...(gated && {
      conditions: [
        {
          type: "PodScheduled",
          status: "False",
          lastProbeTime: null,
          lastTransitionTime: null,
          reason: "SchedulingGated",
          message: "Scheduling is blocked due to non-empty scheduling gates",
        },
      ],
    }),
    qosClass: computeQosClass(pod.spec),
  };
}

/** Everything that makes a pod spec unacceptable; empty when it is valid. */
export function validatePodSpec(spec: Json): FieldCause[] {
  const causes: FieldCause[] = [];
  const volumes = new Set<string>();
  (spec.volumes ?? []).forEach((volume: Json, i: number) => {
    const at = `spec.volumes[${i}]`;
    if (!volume.name) causes.push(required(`${at}.name`));
    else if (!isDnsLabel(volume.name)) causes.push(invalidValue(`${at}.name`, volume.name, LABEL_RULE));
    else if (volumes.has(volume.name)) causes.push(duplicate(`${at}.name`, volume.name));
    volumes.add(volume.name);
    const sources = Object.keys(volume).filter((key) => key !== "name");
    for (const extra of sources.slice(1))
      causes.push(forbiddenField(`${at}.${extra}`, "may not specify more than 1 volume type"));
    if (volume.hostPath && !volume.hostPath.path) causes.push(required(`${at}.hostPath.path`));
    if (volume.configMap && !volume.configMap.name) causes.push(required(`${at}.configMap.name`));
    if (volume.secret && !volume.secret.secretName) causes.push(required(`${at}.secret.secretName`));
    if (volume.persistentVolumeClaim && !volume.persistentVolumeClaim.claimName)
      causes.push(required(`${at}.persistentVolumeClaim.claimName`));
  });
  const names = new Set<string>();
  if (!spec.containers?.length) causes.push(required("spec.containers"));
  (spec.containers ?? []).forEach((c: Json, i: number) =>
    causes.push(...validateContainer(c, `spec.containers[${i}]`, names, volumes)),
  );
  (spec.initContainers ?? []).forEach((c: Json, i: number) =>
    causes.push(...validateContainer(c, `spec.initContainers[${i}]`, names, volumes)),
  );
  (spec.ephemeralContainers ?? []).forEach((c: Json, i: number) =>
    causes.push(...validateContainer(c, `spec.ephemeralContainers[${i}]`, names, volumes)),
  );
  if (!["Always", "OnFailure", "Never"].includes(spec.restartPolicy))
    causes.push(notSupported("spec.restartPolicy", spec.restartPolicy, ["Always", "OnFailure", "Never"]));
  if (!["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"].includes(spec.dnsPolicy)) {
    causes.push(
      notSupported("spec.dnsPolicy", spec.dnsPolicy, ["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"]),
    );
  }
  if (
    spec.activeDeadlineSeconds !== undefined &&
    !(spec.activeDeadlineSeconds >= 1 && spec.activeDeadlineSeconds <= 2 ** 31 - 1)
  ) {
    causes.push(
      invalidValue(
        "spec.activeDeadlineSeconds",
        spec.activeDeadlineSeconds,
        "must be between 1 and 2147483647, inclusive",
      ),
    );
  }
  if (spec.nodeName && !isDnsSubdomain(spec.nodeName))
    causes.push(invalidValue("spec.nodeName", spec.nodeName, SUBDOMAIN_RULE));
  if (spec.hostname && !isDnsLabel(spec.hostname))
    causes.push(invalidValue("spec.hostname", spec.hostname, LABEL_RULE));
  (spec.tolerations ?? []).forEach((t: Json, i: number) => {
    const at = `spec.tolerations[${i}]`;
    if (!t.key && t.operator !== "Exists")
      causes.push(
        invalidValue(
          `${at}.operator`,
          t.operator ?? "",
          'operator must be Exists when `key` is empty, which means "match all values and all keys"',
        ),
      );
    if (t.operator === "Exists" && t.value)
      causes.push(invalidValue(`${at}.operator`, t, "value must be empty when `operator` is 'Exists'"));
    if (t.tolerationSeconds !== undefined && t.effect !== "NoExecute")
      causes.push(
        invalidValue(`${at}.effect`, t.effect ?? "", "effect must be 'NoExecute' when `tolerationSeconds` is set"),
      );
  });
  return causes;
}

const IMMUTABLE_SPEC =
  "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`," +
  "`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";

/** What may change in a pod's spec through the pod itself (`ValidatePodUpdate`). */
export function validatePodUpdate(pod: StoredObject, old: StoredObject): FieldCause[] {
  const now = pod.spec;
  const before = old.spec;
  const causes: FieldCause[] = [];
  for (const list of ["containers", "initContainers"]) {
    if ((now[list]?.length ?? 0) !== (before[list]?.length ?? 0)) {
      causes.push(forbiddenField(`spec.${list}`, "pod updates may not add or remove containers"));
      return causes;
    }
  }
  if (before.activeDeadlineSeconds !== undefined) {
    if (now.activeDeadlineSeconds === undefined)
      causes.push(
        invalidValue("spec.activeDeadlineSeconds", null, "must not update from a positive integer to nil value"),
      );
    else if (now.activeDeadlineSeconds > before.activeDeadlineSeconds) {
      causes.push(
        invalidValue(
          "spec.activeDeadlineSeconds",
          now.activeDeadlineSeconds,
          "must be less than or equal to previous value",
        ),
      );
      return causes;
    }
  }
  const keepsTolerations = (before.tolerations ?? []).every((t: Json) =>
    now.tolerations?.some((n: Json) => jsonEqual({ ...n, tolerationSeconds: 0 }, { ...t, tolerationSeconds: 0 })),
  );
  if (!keepsTolerations)
    causes.push(
      forbiddenField("spec.tolerations", "existing toleration can not be modified except its tolerationSeconds"),
    );
  if (!jsonEqual(withoutChangeable(now, before), before)) causes.push(forbiddenField("spec", IMMUTABLE_SPEC));
  return causes;
}

/** Everything that may change is set back, and what then differs may not. */
function withoutChangeable(now: Json, before: Json): Json {
  const munged = {
    ...now,
    activeDeadlineSeconds: before.activeDeadlineSeconds,
    tolerations: before.tolerations,
  };
  for (const list of ["containers", "initContainers"]) {
    if (munged[list]) munged[list] = munged[list].map((c: Json, i: number) => ({ ...c, image: before[list][i].image }));
  }
  if (before.terminationGracePeriodSeconds < 0 && now.terminationGracePeriodSeconds === 1)
    munged.terminationGracePeriodSeconds = before.terminationGracePeriodSeconds;
  if (before.schedulingGates?.length) {
    const left: Json[] = now.schedulingGates ?? [];
    if (left.every((g) => before.schedulingGates.some((b: Json) => b.name === g.name)))
      munged.schedulingGates = before.schedulingGates;
    munged.nodeSelector = before.nodeSelector;
    munged.affinity = before.affinity;
  }
  return munged;
}

/** Only additions of ephemeral containers are kept from `pod`. */
export function validateEphemeralContainersUpdate(pod: StoredObject, old: StoredObject): FieldCause[] {
  const now: Json[] = pod.spec.ephemeralContainers ?? [];
  const before: Json[] = old.spec.ephemeralContainers ?? [];
  const causes: FieldCause[] = [];
  for (const old of before) {
    const found = now.find((c) => c.name === old.name);
    if (!found)
      causes.push(
        forbiddenField("spec.ephemeralContainers", `existing ephemeral containers "${old.name}" may not be removed\n`),
      );
    else if (!jsonEqual(found, old))
      causes.push(
        forbiddenField("spec.ephemeralContainers", `existing ephemeral containers "${old.name}" may not be changed\n`),
      );
  }
  return causes;
}

/** Through `/resize` only the containers' cpu and memory may change, and never so that the QoS class does. */
export function validateResize(pod: StoredObject, old: StoredObject): FieldCause[] {
  const causes: FieldCause[] = [];
  if (isTerminal(old))
    causes.push(forbiddenField("", "Pod running on node does not support resize because it has terminated"));
  if (computeQosClass(pod.spec) !== computeQosClass(old.spec)) {
    causes.push(
      invalidValue("spec", computeQosClass(pod.spec), "Pod QOS Class may not change as a result of resizing"),
    );
  }
  return causes;
}

/** `ValidatePodStatusUpdate`: what no status patch may do. */
export function validatePodStatusUpdate(pod: StoredObject, old: StoredObject): FieldCause[] {
  const causes: FieldCause[] = [];
  const now = pod.status ?? {};
  const before = old.status ?? {};
  if (before.qosClass && now.qosClass !== before.qosClass)
    causes.push(invalidValue("status.qosClass", now.qosClass, "field is immutable"));
  const policyOf = (list: Json[] | undefined, name: string, fallback: string): string =>
    list?.find((c) => c.name === name)?.restartPolicy ?? fallback;
  causes.push(
    ...backFromTheDead(now.containerStatuses, before.containerStatuses, "status.containerStatuses", (name, exitCode) =>
      restarts(policyOf(old.spec.containers, name, old.spec.restartPolicy), exitCode),
    ),
    ...backFromTheDead(
      now.initContainerStatuses,
      before.initContainerStatuses,
      "status.initContainerStatuses",
      (name, exitCode) => {
        const policy = policyOf(old.spec.initContainers, name, old.spec.restartPolicy);
        return restarts(policy, exitCode) || (policy !== "Never" && exitCode !== 0);
      },
    ),
    ...backFromTheDead(
      now.ephemeralContainerStatuses,
      before.ephemeralContainerStatuses,
      "status.ephemeralContainerStatuses",
      () => false,
    ),
  );
  for (const [list, single] of [
    ["podIPs", "podIP"],
    ["hostIPs", "hostIP"],
  ] as const) {
    const ips: Json[] = now[list] ?? [];
    if (ips.length > 0 && now[single] && ips[0].ip !== now[single]) {
      causes.push(invalidValue(`status.${list}[0].ip`, ips[0].ip, `must be equal to \`${single}\``));
    }
    ips.forEach((entry, i) => {
      if (isIP(entry.ip) === 0) {
        causes.push(
          invalidValue(
            `status.${list}[${i}]`,
            entry.ip,
            "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)",
          ),
        );
      }
      if (ips.findIndex((other) => other.ip === entry.ip) < i) causes.push(duplicate(`status.${list}[${i}]`, entry));
    });
  }
  return causes;
}

const restarts = (policy: string, exitCode: number) =>
  policy === "Always" || (policy === "OnFailure" && exitCode !== 0);

function backFromTheDead(
  now: Json[] | undefined,
  before: Json[] | undefined,
  at: string,
  mayRestart: (name: string, exitCode: number) => boolean,
): FieldCause[] {
  return (before ?? []).flatMap((old, i) => {
    const next = now?.find((status) => status.name === old.name);
    if (
      !old.state?.terminated ||
      !next ||
      next.state?.terminated ||
      mayRestart(old.name, old.state.terminated.exitCode)
    )
      return [];
    return [forbiddenField(`${at}[${i}].state`, "may not be transitioned to non-terminated state")];
  });
}

/** `observedGeneration` in the status and its conditions cannot be cleared once set. */
export function preserveObservedGeneration(status: Json, old: Json): void {
  if (!status.observedGeneration && old?.observedGeneration) status.observedGeneration = old.observedGeneration;
  for (const condition of status.conditions ?? []) {
    const before = old?.conditions?.find((c: Json) => c.type === condition.type);
    if (!condition.observedGeneration && before?.observedGeneration)
      condition.observedGeneration = before.observedGeneration;
  }
}

/** Sets a condition, with `lastTransitionTime` moving only when the status does. */
export function withPodCondition(
  status: Json,
  condition: { type: string; status: string; reason?: string; message?: string },
  now: string,
): Json {
  const conditions: Json[] = status?.conditions ?? [];
  const before = conditions.find((c) => c.type === condition.type);
  const lastTransitionTime = before?.status === condition.status ? before.lastTransitionTime : now;
  const next = { ...before, ...condition, lastProbeTime: before?.lastProbeTime ?? null, lastTransitionTime };
  if (!("reason" in condition)) delete next.reason;
  if (!("message" in condition)) delete next.message;
  return { ...status, conditions: before ? conditions.map((c) => (c === before ? next : c)) : [...conditions, next] };
}
