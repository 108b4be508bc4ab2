/** Server-side printing: the columns that `kubectl get` shows (`pkg/printers/internalversion/printers.go`). */
import { humanDuration } from "../../util/human-duration.ts";
import { age, column, nameColumn, orNone, pairs, simple, since, wide, type Printer } from "./columns.ts";
import { podSummary } from "../../kube/pod-summary.ts";
import { workloadPrinters } from "./workload-columns.ts";
import type { Json, StoredObject } from "../objects/object.ts";

const pod: Printer = {
  columns: [
    nameColumn,
    column("Ready"),
    column("Status"),
    column("Restarts"),
    column("Age"),
    wide("IP"),
    wide("Node"),
    wide("Nominated Node"),
    wide("Readiness Gates"),
  ],
  cells(p, now) {
    const { ready, status, restarts } = podSummary(p, now);
    const gates: Json[] = p.spec.readinessGates ?? [];
    const open = gates.filter((gate) =>
      p.status?.conditions?.some((c: Json) => c.type === gate.conditionType && c.status === "True"),
    ).length;
    return [
      p.metadata.name,
      ready,
      status,
      restarts,
      age(p, now),
      orNone(p.status?.podIPs?.[0]?.ip),
      orNone(p.spec.nodeName),
      orNone(p.status?.nominatedNodeName),
      gates.length > 0 ? `${open}/${gates.length}` : "<none>",
    ];
  },
  conditions(p) {
    if (p.status?.phase === "Succeeded")
      return [
        { type: "Completed", status: "True", reason: "Succeeded", message: "The pod has completed successfully." },
      ];
    if (p.status?.phase === "Failed")
      return [{ type: "Completed", status: "True", reason: "Failed", message: "The pod failed." }];
    return undefined;
  },
};

const node: Printer = {
  columns: [
    nameColumn,
    column("Status"),
    column("Roles"),
    column("Age"),
    column("Version"),
    wide("Internal-IP"),
    wide("External-IP"),
    wide("OS-Image"),
    wide("Kernel-Version"),
    wide("Container-Runtime"),
  ],
  cells(n, now) {
    const ready = n.status?.conditions?.find((c: Json) => c.type === "Ready");
    const states = [
      ready ? (ready.status === "True" ? "Ready" : "NotReady") : "Unknown",
      ...(n.spec?.unschedulable ? ["SchedulingDisabled"] : []),
    ];
    const roles = Object.entries((n.metadata.labels ?? {}) as Record<string, string>).flatMap(([key, value]) =>
      key.startsWith("node-role.kubernetes.io/")
        ? [key.slice("node-role.kubernetes.io/".length)]
        : key === "kubernetes.io/role" && value
          ? [value]
          : [],
    );
    const address = (type: string) => orNone(n.status?.addresses?.find((a: Json) => a.type === type)?.address);
    const info = n.status?.nodeInfo ?? {};
    const orUnknown = (value: string | undefined) => value || "<unknown>";
    return [
      n.metadata.name,
      states.join(","),
      orNone([...new Set(roles)].filter(Boolean).toSorted().join(",")),
      age(n, now),
      info.kubeletVersion ?? "",
      address("InternalIP"),
      address("ExternalIP"),
      orUnknown(info.osImage),
      orUnknown(info.kernelVersion) + (info.architecture ? ` (${info.architecture})` : ""),
      orUnknown(info.containerRuntimeVersion),
    ];
  },
};

const event: Printer = {
  columns: [
    column("Last Seen"),
    column("Type"),
    column("Reason"),
    column("Object"),
    wide("Subobject"),
    wide("Source"),
    column("Message"),
    wide("First Seen"),
    wide("Count"),
    column("Name", { wide: true, format: "name" }),
  ],
  cells(e, now) {
    const first = since(e.firstTimestamp ?? e.eventTime, now);
    const last = e.series
      ? since(e.series.lastObservedTime, now)
      : e.lastTimestamp
        ? since(e.lastTimestamp, now)
        : first;
    const { kind = "", name = "", fieldPath = "" } = e.involvedObject ?? {};
    return [
      last,
      e.type ?? "",
      e.reason ?? "",
      `${kind.toLowerCase()}/${name}`,
      fieldPath,
      eventSource(e),
      (e.message ?? "").trim(),
      first,
      String(e.series?.count ?? (e.count || 1)),
      e.metadata.name,
    ];
  },
};

function eventSource(e: Json): string {
  const component: string = e.source?.component || e.reportingComponent || "";
  const host: string = e.source?.host || e.reportingInstance || "";
  return host ? `${component}, ${host}` : component;
}

const service: Printer = {
  columns: [
    nameColumn,
    column("Type"),
    column("Cluster-IP"),
    column("External-IP"),
    column("Port(s)"),
    column("Age"),
    wide("Selector"),
  ],
  cells(s, now) {
    const ports = (s.spec.ports ?? [])
      .map((p: Json) => (p.nodePort ? `${p.port}:${p.nodePort}/${p.protocol}` : `${p.port}/${p.protocol}`))
      .join(",");
    const external =
      s.spec.type === "ExternalName"
        ? s.spec.externalName
        : s.spec.externalIPs?.length
          ? s.spec.externalIPs.join(",")
          : s.spec.type === "LoadBalancer"
            ? s.status?.loadBalancer?.ingress?.map((i: Json) => i.ip ?? i.hostname).join(",") || "<pending>"
            : "<none>";
    return [
      s.metadata.name,
      s.spec.type,
      orNone(s.spec.clusterIP),
      external,
      orNone(ports),
      age(s, now),
      pairs(s.spec.selector),
    ];
  },
};

const generic = simple([["Age", age]]);

const printers: Readonly<Record<string, Printer>> = {
  ...workloadPrinters,
  Pod: pod,
  Node: node,
  Event: event,
  Service: service,
  Namespace: simple([
    ["Status", (n) => n.status?.phase ?? ""],
    ["Age", age],
  ]),
  ConfigMap: simple([
    ["Data", (m) => String(Object.keys(m.data ?? {}).length + Object.keys(m.binaryData ?? {}).length)],
    ["Age", age],
  ]),
  Secret: simple([
    ["Type", (s) => s.type ?? ""],
    ["Data", (s) => String(Object.keys(s.data ?? {}).length)],
    ["Age", age],
  ]),
  Lease: simple([
    ["Holder", (l) => l.spec?.holderIdentity ?? ""],
    ["Age", age],
  ]),
  Endpoints: simple([
    [
      "Endpoints",
      (e) =>
        orNone(
          (e.subsets ?? [])
            .flatMap((s: Json) =>
              (s.addresses ?? []).flatMap((a: Json) =>
                s.ports?.length ? s.ports.map((p: Json) => `${a.ip}:${p.port}`) : [a.ip],
              ),
            )
            .join(","),
        ),
    ],
    ["Age", age],
  ]),
  RuntimeClass: simple([
    ["Handler", (r) => r.handler],
    ["Age", age],
  ]),
  PriorityClass: simple([
    ["Value", (p) => p.value, { integer: true }],
    ["Global-Default", (p) => String(p.globalDefault ?? false)],
    ["Age", age],
    ["PreemptionPolicy", (p) => p.preemptionPolicy ?? ""],
  ]),
  CSINode: simple([
    ["Drivers", (c) => c.spec?.drivers?.length ?? 0, { integer: true }],
    ["Age", age],
  ]),
  CertificateSigningRequest: simple([
    ["Age", age],
    ["SignerName", (c) => orNone(c.spec?.signerName)],
    ["Requestor", (c) => c.spec?.username ?? ""],
    [
      "RequestedDuration",
      (c) => (c.spec?.expirationSeconds ? humanDuration(c.spec.expirationSeconds * 1000) : "<none>"),
    ],
    [
      "Condition",
      (c) => {
        const has = (type: string) => c.status?.conditions?.some((condition: Json) => condition.type === type);
        const state = has("Denied") ? "Denied" : has("Approved") ? "Approved" : "Pending";
        return [state, ...(has("Failed") ? ["Failed"] : []), ...(c.status?.certificate ? ["Issued"] : [])].join(",");
      },
    ],
  ]),
  PersistentVolume: simple([
    ["Capacity", (v) => v.spec?.capacity?.storage ?? ""],
    ["Access Modes", (v) => accessModes(v.spec?.accessModes)],
    ["Reclaim Policy", (v) => v.spec?.persistentVolumeReclaimPolicy ?? ""],
    ["Status", (v) => (v.metadata.deletionTimestamp ? "Terminating" : (v.status?.phase ?? ""))],
    ["Claim", (v) => (v.spec?.claimRef ? `${v.spec.claimRef.namespace}/${v.spec.claimRef.name}` : "")],
    ["StorageClass", (v) => v.spec?.storageClassName ?? ""],
    ["VolumeAttributesClass", (v) => v.spec?.volumeAttributesClassName ?? "<unset>"],
    ["Reason", (v) => v.status?.reason ?? ""],
    ["Age", age],
    ["VolumeMode", (v) => v.spec?.volumeMode ?? "<unset>", { wide: true }],
  ]),
  PersistentVolumeClaim: simple([
    ["Status", (c) => (c.metadata.deletionTimestamp ? "Terminating" : (c.status?.phase ?? ""))],
    ["Volume", (c) => c.spec?.volumeName ?? ""],
    ["Capacity", (c) => c.status?.capacity?.storage ?? ""],
    ["Access Modes", (c) => accessModes(c.status?.accessModes)],
    ["StorageClass", (c) => c.spec?.storageClassName ?? ""],
    ["VolumeAttributesClass", (c) => c.spec?.volumeAttributesClassName ?? "<unset>"],
    ["Age", age],
    ["VolumeMode", (c) => c.spec?.volumeMode ?? "<unset>", { wide: true }],
  ]),
};

const SHORT_MODES: Readonly<Record<string, string>> = {
  ReadWriteOnce: "RWO",
  ReadOnlyMany: "ROX",
  ReadWriteMany: "RWX",
  ReadWriteOncePod: "RWOP",
};

function accessModes(modes: readonly string[] = []): string {
  return modes.map((mode) => SHORT_MODES[mode]).join(",");
}

export type IncludeObject = "None" | "Metadata" | "Object";

/** A `meta.k8s.io/v1` Table of `objects`. `withColumns` is false for all but the first table of a watch. */
export function renderTable(
  kind: string,
  objects: readonly StoredObject[],
  options: { now: number; include: IncludeObject; withColumns: boolean; listMeta?: Json },
): Json {
  const printer = printers[kind] ?? generic;
  return {
    kind: "Table",
    apiVersion: "meta.k8s.io/v1",
    metadata: options.listMeta ?? (objects[0] ? { resourceVersion: objects[0].metadata.resourceVersion } : {}),
    columnDefinitions: options.withColumns ? printer.columns : null,
    rows: objects.map((object) => ({
      cells: printer.cells(object, options.now),
      ...(printer.conditions?.(object) && { conditions: printer.conditions(object) }),
      ...(options.include === "Metadata" && { object: partialMetadata(object) }),
      ...(options.include === "Object" && { object }),
    })),
  };
}

export const partialMetadata = (object: StoredObject): Json => ({
  kind: "PartialObjectMetadata",
  apiVersion: "meta.k8s.io/v1",
  metadata: object.metadata,
});
