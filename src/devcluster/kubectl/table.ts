/** Server-side printing: the columns that `kubectl get` shows (`pkg/printers/internalversion/printers.go`). */
import { age, column, humanDuration, nameColumn, orNone, pairs, simple, since, wide, type Printer } from "./columns.ts";
import { workloadPrinters } from "./workload-columns.ts";
import type { Json, StoredObject } from "../objects/object.ts";

/**
 * READY, STATUS and RESTARTS of `kubectl get pods`.
 * @internal
 */
export function podSummary(pod: Json, now: number): { ready: string; status: string; restarts: string } {
  const { spec, status = {} } = pod;
  const isSidecar = (name: string) =>
    spec.initContainers?.find((c: Json) => c.name === name)?.restartPolicy === "Always";
  let restarts = 0;
  let sidecarRestarts = 0;
  let lastRestart = 0;
  let lastSidecarRestart = 0;
  let total: number = spec.containers?.length ?? 0;
  let ready = 0;
  let reason: string = status.reason || status.phase || "";
  if (status.conditions?.some((c: Json) => c.type === "PodScheduled" && c.reason === "SchedulingGated"))
    reason = "SchedulingGated";
  total += (spec.initContainers ?? []).filter((c: Json) => c.restartPolicy === "Always").length;

  const finished = (c: Json): number =>
    c.lastState?.terminated ? Date.parse(c.lastState.terminated.finishedAt) || 0 : 0;
  let initializing = false;
  for (const [i, c] of ((status.initContainerStatuses ?? []) as Json[]).entries()) {
    const sidecar = isSidecar(c.name);
    restarts += c.restartCount;
    lastRestart = Math.max(lastRestart, finished(c));
    if (sidecar) {
      sidecarRestarts += c.restartCount;
      lastSidecarRestart = Math.max(lastSidecarRestart, finished(c));
    }
    if (c.state?.terminated?.exitCode === 0) continue;
    if (sidecar && c.started) {
      if (c.ready) ready++;
      continue;
    }
    if (c.state?.terminated) {
      const { reason: why, signal, exitCode } = c.state.terminated;
      reason = why ? `Init:${why}` : signal ? `Init:Signal:${signal}` : `Init:ExitCode:${exitCode}`;
    } else if (c.state?.waiting?.reason && c.state.waiting.reason !== "PodInitializing") {
      reason = `Init:${c.state.waiting.reason}`;
    } else {
      reason = `Init:${i}/${spec.initContainers?.length ?? 0}`;
    }
    initializing = true;
    break;
  }

  const isTrue = (type: string) =>
    status.conditions?.some((c: Json) => c.type === type && c.status === "True") === true;
  if (!initializing || isTrue("Initialized")) {
    restarts = sidecarRestarts;
    lastRestart = lastSidecarRestart;
    let running = false;
    let errorReason = "";
    for (const c of ((status.containerStatuses ?? []) as Json[]).toReversed()) {
      restarts += c.restartCount;
      lastRestart = Math.max(lastRestart, finished(c));
      if (c.state?.waiting?.reason) {
        reason = c.state.waiting.reason;
      } else if (c.state?.terminated) {
        const { reason: why, signal, exitCode } = c.state.terminated;
        reason = why || (signal ? `Signal:${signal}` : `ExitCode:${exitCode}`);
        if (exitCode !== 0) errorReason = reason;
      } else if (c.ready && c.state?.running) {
        running = true;
        ready++;
      }
    }
    if (reason === "Completed") {
      if (running && isTrue("Ready")) reason = "Running";
      else if (errorReason) reason = errorReason;
      else if (running) reason = "NotReady";
    }
  }
  if (pod.metadata.deletionTimestamp) {
    if (status.reason === "NodeLost") reason = "Unknown";
    else if (status.phase !== "Succeeded" && status.phase !== "Failed") reason = "Terminating";
  }
  return {
    ready: `${ready}/${total}`,
    status: reason,
    restarts:
      restarts !== 0 && lastRestart > 0 ? `${restarts} (${humanDuration(now - lastRestart)} ago)` : String(restarts),
  };
}

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
    const involved = e.involvedObject ?? {};
    const component: string = e.source?.component || e.reportingComponent || "";
    const host: string = e.source?.host || e.reportingInstance || "";
    return [
      last,
      e.type ?? "",
      e.reason ?? "",
      `${(involved.kind ?? "").toLowerCase()}/${involved.name ?? ""}`,
      involved.fieldPath ?? "",
      host ? `${component}, ${host}` : component,
      (e.message ?? "").trim(),
      first,
      String(e.series?.count ?? (e.count || 1)),
      e.metadata.name,
    ];
  },
};

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
  PersistentVolumeClaim: simple([
    ["Status", (c) => (c.metadata.deletionTimestamp ? "Terminating" : (c.status?.phase ?? ""))],
    ["Volume", (c) => c.spec?.volumeName ?? ""],
    ["Capacity", (c) => c.status?.capacity?.storage ?? ""],
    [
      "Access Modes",
      (c) =>
        (c.status?.accessModes ?? [])
          .map(
            (mode: string) =>
              ({ ReadWriteOnce: "RWO", ReadOnlyMany: "ROX", ReadWriteMany: "RWX", ReadWriteOncePod: "RWOP" })[mode],
          )
          .join(","),
    ],
    ["StorageClass", (c) => c.spec?.storageClassName ?? ""],
    ["VolumeAttributesClass", (c) => c.spec?.volumeAttributesClassName ?? "<unset>"],
    ["Age", age],
    ["VolumeMode", (c) => c.spec?.volumeMode ?? "<unset>", { wide: true }],
  ]),
};

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
