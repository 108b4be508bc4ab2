/** Pods: specification, status and subresources. */
import { expect } from "vitest";
import type { Json } from "../api.ts";
import { MERGE, STRATEGIC, expectStatus, must, pod, podsIn, type FidelityCase } from "../support.ts";

export const podsCases: readonly FidelityCase[] = [
  {
    name: "a status patch changes neither the spec nor owner references, and a spec patch not the status",
    async run(api, ns) {
      await must(api.request("POST", podsIn(ns), pod("p", { nodeName: "nowhere" })), 201);
      const viaStatus = await must(
        api.request(
          "PATCH",
          `${podsIn(ns, "p")}/status`,
          {
            metadata: { ownerReferences: [{ apiVersion: "v1", kind: "Node", name: "n", uid: "u" }] },
            spec: { activeDeadlineSeconds: 5 },
            status: { phase: "Running" },
          },
          STRATEGIC,
        ),
        200,
      );
      expect(viaStatus.spec).not.toHaveProperty("activeDeadlineSeconds");
      expect(viaStatus.metadata).not.toHaveProperty("ownerReferences");
      expect(viaStatus.status.phase).toBe("Running");
      const viaSpec = await must(
        api.request(
          "PATCH",
          podsIn(ns, "p"),
          { metadata: { labels: { a: "b" } }, status: { phase: "Failed" } },
          STRATEGIC,
        ),
        200,
      );
      expect(viaSpec.status.phase).toBe("Running");
      expect(viaSpec.metadata.labels).toEqual({ a: "b" });
    },
  },
  {
    name: "the generation counts changes of the spec only",
    async run(api, ns) {
      await must(api.request("POST", podsIn(ns), pod("p", { nodeName: "nowhere" })), 201);
      const generation = async (path: string, patch: Json) =>
        (await must(api.request("PATCH", path, patch, STRATEGIC), 200)).metadata.generation as number;
      expect(await generation(podsIn(ns, "p"), { metadata: { labels: { a: "b" } } })).toBe(1);
      expect(await generation(`${podsIn(ns, "p")}/status`, { status: { phase: "Running" } })).toBe(1);
      expect(await generation(podsIn(ns, "p"), { spec: { containers: [{ name: "a", image: "busybox:1.37" }] } })).toBe(
        2,
      );
      expect(await generation(podsIn(ns, "p"), { spec: { activeDeadlineSeconds: 500 } })).toBe(3);
    },
  },
  {
    name: "of a pod's spec only the named fields may change",
    async run(api, ns) {
      await must(api.request("POST", podsIn(ns), pod("p")), 201);
      const answer = await api.request("PATCH", podsIn(ns, "p"), { spec: { restartPolicy: "Never" } }, STRATEGIC);
      expectStatus(answer, {
        code: 422,
        reason: "Invalid",
        message:
          /^Pod "p" is invalid: spec: Forbidden: pod updates may not change fields other than `spec\.containers\[\*\]\.image`,`spec\.initContainers\[\*\]\.image`,/,
      });
      const added = await api.request(
        "PATCH",
        podsIn(ns, "p"),
        { spec: { containers: [{ name: "b", image: "i" }] } },
        STRATEGIC,
      );
      expectStatus(added, {
        code: 422,
        reason: "Invalid",
        message: 'Pod "p" is invalid: spec.containers: Forbidden: pod updates may not add or remove containers',
      });
    },
  },
  {
    name: "tolerations can be added, and applying a manifest again keeps those of admission",
    async run(api, ns) {
      await must(api.request("POST", podsIn(ns), pod("p")), 201);
      const patched = await must(
        api.request("PATCH", podsIn(ns, "p"), { spec: { tolerations: [{ key: "k", operator: "Exists" }] } }, STRATEGIC),
        200,
      );
      expect(patched.spec.tolerations.map((t: Json) => t.key)).toEqual([
        "k",
        "node.kubernetes.io/not-ready",
        "node.kubernetes.io/unreachable",
      ]);
    },
  },
  {
    name: "container states are written out, and a terminated container that may not restart stays so",
    async run(api, ns) {
      await must(api.request("POST", podsIn(ns), pod("p", { nodeName: "nowhere", restartPolicy: "Never" })), 201);
      const container = (state: Json) => ({
        status: { containerStatuses: [{ name: "a", image: "i", imageID: "", ready: false, restartCount: 0, state }] },
      });
      const patched = await must(
        api.request("PATCH", `${podsIn(ns, "p")}/status`, container({ terminated: { exitCode: 1 } }), STRATEGIC),
        200,
      );
      expect(patched.status.containerStatuses[0]).toEqual({
        name: "a",
        state: { terminated: { exitCode: 1, startedAt: null, finishedAt: null } },
        lastState: {},
        ready: false,
        restartCount: 0,
        image: "i",
        imageID: "",
      });
      const answer = await api.request(
        "PATCH",
        `${podsIn(ns, "p")}/status`,
        container({ terminated: null, running: {} }),
        STRATEGIC,
      );
      expectStatus(answer, {
        code: 422,
        reason: "Invalid",
        message:
          'Pod "p" is invalid: status.containerStatuses[0].state: Forbidden: may not be transitioned to non-terminated state',
      });
    },
  },
  {
    name: "the QoS class cannot be changed and is kept when a status leaves it out",
    async run(api, ns) {
      const created = await must(api.request("POST", podsIn(ns), pod("p", { nodeName: "nowhere" })), 201);
      const put = await must(
        api.request("PUT", `${podsIn(ns, "p")}/status`, { ...created, status: { phase: "Running" } }),
        200,
      );
      expect(put.status.qosClass).toBe("BestEffort");
      const answer = await api.request(
        "PATCH",
        `${podsIn(ns, "p")}/status`,
        { status: { qosClass: "Guaranteed" } },
        STRATEGIC,
      );
      expectStatus(answer, {
        code: 422,
        reason: "Invalid",
        message: 'Pod "p" is invalid: status.qosClass: Invalid value: "Guaranteed": field is immutable',
      });
    },
  },
  {
    name: "observedGeneration survives a status that leaves it out",
    async run(api, ns) {
      const created = await must(api.request("POST", podsIn(ns), pod("p", { nodeName: "nowhere" })), 201);
      await must(
        api.request(
          "PATCH",
          `${podsIn(ns, "p")}/status`,
          { status: { observedGeneration: 1, conditions: [{ type: "Ready", status: "True", observedGeneration: 1 }] } },
          STRATEGIC,
        ),
        200,
      );
      const put = await must(
        api.request("PUT", `${podsIn(ns, "p")}/status`, {
          ...created,
          metadata: { ...created.metadata, resourceVersion: undefined },
          status: { phase: "Running", conditions: [{ type: "Ready", status: "False" }] },
        }),
        200,
      );
      expect(put.status.observedGeneration).toBe(1);
      expect(put.status.conditions[0].observedGeneration).toBe(1);
    },
  },
  {
    name: "podIP and podIPs are kept in step, and addresses must be addresses",
    async run(api, ns) {
      await must(api.request("POST", podsIn(ns), pod("p", { nodeName: "nowhere" })), 201);
      const patch = (status: Json) => api.request("PATCH", `${podsIn(ns, "p")}/status`, { status }, MERGE);
      expect((await must(patch({ podIP: "10.0.0.1" }), 200)).status.podIPs).toEqual([{ ip: "10.0.0.1" }]);
      expect((await must(patch({ podIP: "10.0.0.2" }), 200)).status.podIPs).toEqual([{ ip: "10.0.0.2" }]);
      expectStatus(await patch({ podIP: "bad", podIPs: [{ ip: "bad" }] }), {
        code: 422,
        reason: "Invalid",
        message:
          'Pod "p" is invalid: status.podIPs[0]: Invalid value: "bad": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)',
      });
    },
  },
  {
    name: "a binding sets the node and PodScheduled, once",
    async run(api, ns) {
      await must(api.request("POST", podsIn(ns), pod("p")), 201);
      const binding = {
        apiVersion: "v1",
        kind: "Binding",
        metadata: { name: "p" },
        target: { apiVersion: "v1", kind: "Node", name: "nowhere" },
      };
      const bound = await api.request("POST", `${podsIn(ns, "p")}/binding`, binding);
      expect(bound.status).toBe(201);
      expect(bound.body).toMatchObject({ kind: "Status", status: "Success", code: 201 });
      const after = await must(api.request("GET", podsIn(ns, "p")), 200);
      expect(after.spec.nodeName).toBe("nowhere");
      expect(after.metadata.generation).toBe(1);
      expect(after.status.conditions).toEqual([
        { type: "PodScheduled", status: "True", lastProbeTime: null, lastTransitionTime: expect.any(String) },
      ]);
      expectStatus(await api.request("POST", `${podsIn(ns, "p")}/binding`, binding), {
        code: 409,
        reason: "Conflict",
        message: 'Operation cannot be fulfilled on pods/binding "p": pod p is already assigned to node "nowhere"',
      });
    },
  },
  {
    name: "ephemeral containers are added through their subresource only",
    async run(api, ns) {
      await must(api.request("POST", podsIn(ns), pod("p", { nodeName: "nowhere" })), 201);
      const patch = { spec: { ephemeralContainers: [{ name: "debug", image: "busybox" }] } };
      const patched = await must(api.request("PATCH", `${podsIn(ns, "p")}/ephemeralcontainers`, patch, STRATEGIC), 200);
      expect(patched.spec.ephemeralContainers[0]).toMatchObject({
        name: "debug",
        image: "busybox",
        imagePullPolicy: "Always",
      });
      expect(patched.metadata.generation).toBe(2);
      expect(
        (
          await api.request(
            "PATCH",
            podsIn(ns, "p"),
            { spec: { ephemeralContainers: [{ name: "more", image: "i" }] } },
            STRATEGIC,
          )
        ).status,
      ).toBe(422);
    },
  },
  {
    name: "a resize changes resources through its subresource only",
    async run(api, ns) {
      const resources = { requests: { cpu: "100m" }, limits: { cpu: "200m" } };
      const nodeName = `node-${ns}`;
      await must(
        api.request("POST", "/api/v1/nodes", {
          metadata: { name: nodeName },
          status: { capacity: { cpu: "4", memory: "1Gi", pods: "9" } },
        }),
        201,
      );
      await must(
        api.request("POST", podsIn(ns), pod("p", { nodeName, containers: [{ name: "a", image: "i", resources }] })),
        201,
      );
      const patch = { spec: { containers: [{ name: "a", resources: { requests: { cpu: "150m" } } }] } };
      expect((await api.request("PATCH", podsIn(ns, "p"), patch, STRATEGIC)).status).toBe(422);
      const resized = await must(api.request("PATCH", `${podsIn(ns, "p")}/resize`, patch, STRATEGIC), 200);
      expect(resized.spec.containers[0].resources).toEqual({ requests: { cpu: "150m" }, limits: { cpu: "200m" } });
      expect(resized.metadata.generation).toBe(2);
    },
  },
];
