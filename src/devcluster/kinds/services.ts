/** Services, whose addresses and ports are given out here, and Endpoints. */
import { invalidValue, required } from "../objects/errors.ts";
import type { Json } from "../objects/object.ts";
import { defineKind, keepStatus, statusOnly, text, type AdmissionContext } from "./kind.ts";

function admitService(service: Json, context: AdmissionContext): undefined {
  const spec = service.spec;
  if (spec.type === "ExternalName") return;
  spec.ipFamilies ??= ["IPv4"];
  spec.ipFamilyPolicy ??= "SingleStack";
  if (!spec.clusterIP) {
    const taken = new Set(context.list("/services").map((s) => s.spec?.clusterIP as string));
    for (let host = 10; host < 65_000 && !spec.clusterIP; host++) {
      const candidate = `${context.serviceNetwork}.${host >> 8}.${host & 255}`;
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

export const services = defineKind({
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

export const endpoints = defineKind({
  kind: "Endpoints",
  resource: "endpoints",
  singular: "endpoints",
  shortNames: ["ep"],
  createOnUpdate: true,
  setDefaults(endpoints) {
    for (const subset of endpoints.subsets ?? []) for (const port of subset.ports ?? []) port.protocol ??= "TCP";
  },
});
