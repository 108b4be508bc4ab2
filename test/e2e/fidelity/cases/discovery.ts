/** Tables for kubectl, discovery and OpenAPI. */
import { expect } from "vitest";
import type { Json } from "../api.ts";
import {
  MERGE,
  STRATEGIC,
  TABLE,
  configMap,
  inNamespace,
  leasesIn,
  mapsIn,
  must,
  pod,
  podsIn,
  type FidelityCase,
} from "../support.ts";

export const discoveryCases: readonly FidelityCase[] = [
  {
    name: "pods print as kubectl's table",
    async run(api, ns) {
      await must(api.request("POST", podsIn(ns), pod("p", { nodeName: "nowhere" })), 201);
      await must(
        api.request(
          "PATCH",
          `${podsIn(ns, "p")}/status`,
          {
            status: {
              phase: "Running",
              podIP: "10.0.0.7",
              podIPs: [{ ip: "10.0.0.7" }],
              containerStatuses: [
                {
                  name: "a",
                  image: "i",
                  imageID: "",
                  ready: false,
                  restartCount: 3,
                  state: { waiting: { reason: "CrashLoopBackOff" } },
                },
              ],
            },
          },
          STRATEGIC,
        ),
        200,
      );
      const table = await must(api.request("GET", podsIn(ns), undefined, TABLE), 200);
      expect(table).toMatchObject({ kind: "Table", apiVersion: "meta.k8s.io/v1" });
      expect(table.columnDefinitions.map((c: Json) => [c.name, c.priority])).toEqual([
        ["Name", 0],
        ["Ready", 0],
        ["Status", 0],
        ["Restarts", 0],
        ["Age", 0],
        ["IP", 1],
        ["Node", 1],
        ["Nominated Node", 1],
        ["Readiness Gates", 1],
      ]);
      const [name, ready, status, restarts, , ip, node] = table.rows[0].cells;
      expect([name, ready, status, restarts, ip, node]).toEqual([
        "p",
        "0/1",
        "CrashLoopBackOff",
        "3",
        "10.0.0.7",
        "nowhere",
      ]);
      expect(table.rows[0].object).toMatchObject({ kind: "PartialObjectMetadata", metadata: { name: "p" } });
    },
  },
  {
    name: "other kinds print their own columns",
    async run(api, ns) {
      const columns = async (path: string) =>
        (await must(api.request("GET", path, undefined, TABLE), 200)).columnDefinitions.map(
          (c: Json) => c.name as string,
        );
      expect(await columns("/api/v1/nodes")).toEqual([
        "Name",
        "Status",
        "Roles",
        "Age",
        "Version",
        "Internal-IP",
        "External-IP",
        "OS-Image",
        "Kernel-Version",
        "Container-Runtime",
      ]);
      expect(await columns(inNamespace(ns, "events"))).toEqual([
        "Last Seen",
        "Type",
        "Reason",
        "Object",
        "Subobject",
        "Source",
        "Message",
        "First Seen",
        "Count",
        "Name",
      ]);
      expect(await columns(inNamespace(ns, "services"))).toEqual([
        "Name",
        "Type",
        "Cluster-IP",
        "External-IP",
        "Port(s)",
        "Age",
        "Selector",
      ]);
      expect(await columns("/api/v1/namespaces")).toEqual(["Name", "Status", "Age"]);
      expect(await columns(mapsIn(ns))).toEqual(["Name", "Data", "Age"]);
      expect(await columns(inNamespace(ns, "secrets"))).toEqual(["Name", "Type", "Data", "Age"]);
      expect(await columns(leasesIn(ns))).toEqual(["Name", "Holder", "Age"]);
      expect(await columns(inNamespace(ns, "persistentvolumeclaims"))).toEqual([
        "Name",
        "Status",
        "Volume",
        "Capacity",
        "Access Modes",
        "StorageClass",
        "VolumeAttributesClass",
        "Age",
        "VolumeMode",
      ]);
    },
  },
  {
    name: "a watch can print tables, with columns in the first one only",
    async run(api, ns) {
      const created = await must(api.request("POST", podsIn(ns), pod("p")), 201);
      const watch = await api.watch(`${podsIn(ns)}?watch=true&resourceVersion=0`, TABLE);
      const first = await watch.nextChange();
      expect(first.object.rows[0].cells[0]).toBe("p");
      expect(first.object.columnDefinitions).toHaveLength(9);
      await must(api.request("PATCH", podsIn(ns, "p"), { metadata: { labels: { a: "b" } } }, MERGE), 200);
      const second = await watch.nextChange();
      expect(second.object.columnDefinitions).toBeNull();
      expect(second.object.rows[0].object.metadata.uid).toBe(created.metadata.uid);
      watch.close();
    },
  },
  {
    name: "metadata alone can be asked for",
    async run(api, ns) {
      await must(api.request("POST", mapsIn(ns), configMap("m", { a: "1" })), 201);
      const answer = await must(
        api.request("GET", mapsIn(ns, "m"), undefined, {
          accept: "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
        }),
        200,
      );
      expect(answer).toMatchObject({
        kind: "PartialObjectMetadata",
        apiVersion: "meta.k8s.io/v1",
        metadata: { name: "m" },
      });
      expect(answer).not.toHaveProperty("data");
    },
  },
  {
    name: "discovery lists the resources that a node agent uses, plainly and aggregated",
    async run(api) {
      const core = await must(api.request("GET", "/api/v1"), 200);
      const find = (name: string) => core.resources.find((r: Json) => r.name === name);
      expect(find("pods")).toMatchObject({
        singularName: "pod",
        namespaced: true,
        kind: "Pod",
        shortNames: ["po"],
        categories: ["all"],
        verbs: ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"],
      });
      expect(find("pods/eviction")).toMatchObject({
        group: "policy",
        version: "v1",
        kind: "Eviction",
        verbs: ["create"],
      });
      expect(find("nodes/status")).toMatchObject({ namespaced: false, verbs: ["get", "patch", "update"] });
      const groups = await must(api.request("GET", "/apis"), 200);
      expect(groups.groups.map((g: Json) => g.name)).toEqual(
        expect.arrayContaining([
          "coordination.k8s.io",
          "storage.k8s.io",
          "node.k8s.io",
          "certificates.k8s.io",
          "authentication.k8s.io",
          "authorization.k8s.io",
        ]),
      );
      const aggregated = await api.request("GET", "/api", undefined, {
        accept: "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json",
      });
      expect(aggregated.headers["content-type"]).toBe(
        "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
      );
      const pods = aggregated.body.items[0].versions[0].resources.find((r: Json) => r.resource === "pods");
      expect(pods).toMatchObject({ scope: "Namespaced", singularResource: "pod", responseKind: { kind: "Pod" } });
      expect(pods.subresources.map((s: Json) => s.subresource)).toEqual(
        expect.arrayContaining(["status", "binding", "exec", "log"]),
      );
    },
  },
  {
    name: "OpenAPI v3 says that pods are validated on the server and how their lists merge",
    async run(api) {
      const index = await must(api.request("GET", "/openapi/v3"), 200);
      const document = await must(api.request("GET", index.paths["api/v1"].serverRelativeURL), 200);
      const patch = document.paths["/api/v1/namespaces/{namespace}/pods/{name}"].patch;
      expect(patch["x-kubernetes-group-version-kind"]).toEqual({ group: "", kind: "Pod", version: "v1" });
      expect(patch.parameters.map((p: Json) => p.name)).toContain("fieldValidation");
      expect(Object.keys(patch.requestBody.content)).toContain("application/strategic-merge-patch+json");
      const spec = Object.entries<Json>(document.components.schemas).find(([name]) => name.endsWith("PodSpec"))![1];
      expect(spec.properties.containers).toMatchObject({
        type: "array",
        "x-kubernetes-patch-strategy": "merge",
        "x-kubernetes-patch-merge-key": "name",
      });
    },
  },
];
