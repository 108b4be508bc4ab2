/** Kinds beside pods and what is special about each. */
import { expect } from "vitest";
import type { Json } from "../api.ts";
import {
  MERGE,
  STRATEGIC,
  configMap,
  expectStatus,
  inNamespace,
  leasesIn,
  mapsIn,
  must,
  pod,
  podsIn,
  type FidelityCase,
} from "../support.ts";

export const otherKindsCases: readonly FidelityCase[] = [
  {
    name: "a Lease keeps microseconds and is renewed by compare and swap",
    async run(api, ns) {
      const created = await must(
        api.request("POST", leasesIn(ns), {
          metadata: { name: "l" },
          spec: { holderIdentity: "n", leaseDurationSeconds: 40, renewTime: "2026-01-02T03:04:05.678901Z" },
        }),
        201,
      );
      expect(created.spec.renewTime).toBe("2026-01-02T03:04:05.678901Z");
      await must(
        api.request("PUT", leasesIn(ns, "l"), {
          ...created,
          spec: { ...created.spec, renewTime: "2026-01-02T03:04:15.000000Z" },
        }),
        200,
      );
      expect((await api.request("PUT", leasesIn(ns, "l"), created)).status).toBe(409);
    },
  },
  {
    name: "a MicroTime has six decimals, no more and no fewer",
    async run(api, ns) {
      for (const renewTime of ["2026-01-02T03:04:05.678Z", "2026-01-02T03:04:05Z"]) {
        const answer = await api.request("POST", leasesIn(ns), { metadata: { name: "l" }, spec: { renewTime } });
        expectStatus(answer, {
          code: 400,
          reason: "BadRequest",
          message: /^Lease in version "v1" cannot be handled as a Lease: parsing time /,
        });
      }
    },
  },
  {
    name: "an Event is created, patched and selected by what it is about",
    async run(api, ns) {
      const event = {
        metadata: { name: "e" },
        involvedObject: { kind: "Pod", namespace: ns, name: "p", uid: "u" },
        reason: "Why",
        message: "m",
        type: "Normal",
        count: 1,
      };
      const created = await must(api.request("POST", inNamespace(ns, "events"), event), 201);
      expect(created).toMatchObject({
        source: {},
        firstTimestamp: null,
        lastTimestamp: null,
        eventTime: null,
        reportingComponent: "",
        reportingInstance: "",
      });
      expect(
        (await must(api.request("PATCH", inNamespace(ns, "events", "e"), { count: 2 }, STRATEGIC), 200)).count,
      ).toBe(2);
      for (const [selector, names] of [
        ["involvedObject.uid=u,reason=Why", ["e"]],
        ["type=Warning", []],
      ] as const) {
        const list = await must(
          api.request("GET", `${inNamespace(ns, "events")}?fieldSelector=${encodeURIComponent(selector)}`),
          200,
        );
        expect(list.items.map((item: Json) => item.metadata.name)).toEqual(names);
      }
    },
  },
  {
    name: "an Event about an object of another namespace is 422",
    async run(api, ns) {
      const answer = await api.request("POST", inNamespace(ns, "events"), {
        metadata: { name: "e" },
        involvedObject: { kind: "Pod", namespace: "elsewhere", name: "p" },
        reason: "R",
        type: "Normal",
      });
      expectStatus(answer, {
        code: 422,
        reason: "Invalid",
        message: /involvedObject\.namespace: Invalid value: "elsewhere": does not match event\.namespace$/,
      });
    },
  },
  {
    name: "a Secret is opaque by default and stringData becomes data",
    async run(api, ns) {
      const created = await must(
        api.request("POST", inNamespace(ns, "secrets"), { metadata: { name: "s" }, stringData: { k: "v" } }),
        201,
      );
      expect(created).toMatchObject({ type: "Opaque", data: { k: "dg==" } });
      expect(created).not.toHaveProperty("stringData");
    },
  },
  {
    name: "an immutable ConfigMap does not change",
    async run(api, ns) {
      await must(api.request("POST", mapsIn(ns), { ...configMap("m", { a: "1" }), immutable: true }), 201);
      expectStatus(await api.request("PATCH", mapsIn(ns, "m"), { data: { a: "2" } }, MERGE), {
        code: 422,
        reason: "Invalid",
        message: 'ConfigMap "m" is invalid: data: Forbidden: field is immutable when `immutable` is set',
      });
    },
  },
  {
    name: "a Service gets a cluster address, port defaults, and keeps its address",
    async run(api, ns) {
      const created = await must(
        api.request("POST", inNamespace(ns, "services"), {
          metadata: { name: "s" },
          spec: { selector: { a: "b" }, ports: [{ port: 80 }] },
        }),
        201,
      );
      expect(created.spec).toMatchObject({
        type: "ClusterIP",
        sessionAffinity: "None",
        ipFamilies: ["IPv4"],
        ipFamilyPolicy: "SingleStack",
        internalTrafficPolicy: "Cluster",
        ports: [{ port: 80, protocol: "TCP", targetPort: 80 }],
      });
      expect(created.spec.clusterIP).toMatch(/^\d+\.\d+\.\d+\.\d+$/);
      expect(created.spec.clusterIPs).toEqual([created.spec.clusterIP]);
      expect(created.status).toEqual({ loadBalancer: {} });
      const headless = await must(
        api.request("POST", inNamespace(ns, "services"), {
          metadata: { name: "h" },
          spec: { clusterIP: "None", selector: { a: "b" } },
        }),
        201,
      );
      expect(headless.spec.clusterIPs).toEqual(["None"]);
    },
  },
  {
    name: "a Node may be created with its status, and its two endpoints write their own halves",
    async run(api, ns) {
      const name = `node-${ns}`;
      const created = await must(
        api.request("POST", "/api/v1/nodes", {
          metadata: { name },
          status: { capacity: { cpu: "4", memory: "2048Mi" } },
        }),
        201,
      );
      expect(created.status.allocatable).toEqual({ cpu: "4", memory: "2Gi" });
      expect(created.status.daemonEndpoints).toEqual({ kubeletEndpoint: { Port: 0 } });
      const viaStatus = await must(
        api.request(
          "PATCH",
          `/api/v1/nodes/${name}/status`,
          { spec: { unschedulable: true }, status: { conditions: [{ type: "Ready", status: "True" }] } },
          STRATEGIC,
        ),
        200,
      );
      expect(viaStatus.spec).not.toHaveProperty("unschedulable");
      expect(viaStatus.status.conditions[0]).toEqual({
        type: "Ready",
        status: "True",
        lastHeartbeatTime: null,
        lastTransitionTime: null,
      });
      const viaSpec = await must(
        api.request(
          "PATCH",
          `/api/v1/nodes/${name}`,
          { spec: { unschedulable: true }, status: { phase: "Gone" } },
          STRATEGIC,
        ),
        200,
      );
      expect(viaSpec.spec.unschedulable).toBe(true);
      expect(viaSpec.status).not.toHaveProperty("phase");
      await must(api.request("DELETE", `/api/v1/nodes/${name}`), 200);
    },
  },
  {
    name: "a token for a service account is bound to a pod and a TokenReview accepts it until the pod is gone",
    async run(api, ns) {
      const created = await must(api.request("POST", podsIn(ns), pod("p", { nodeName: "nowhere" })), 201);
      const request = {
        apiVersion: "authentication.k8s.io/v1",
        kind: "TokenRequest",
        spec: {
          expirationSeconds: 3607,
          audiences: ["vmlet.test"],
          boundObjectRef: { apiVersion: "v1", kind: "Pod", name: "p", uid: created.metadata.uid },
        },
      };
      const issued = await must(
        api.request("POST", `${inNamespace(ns, "serviceaccounts", "default")}/token`, request),
        201,
      );
      expect(issued.status.token.split(".")).toHaveLength(3);
      expect(Date.parse(issued.status.expirationTimestamp)).toBeGreaterThan(Date.now());
      const review = async (audiences: string[]) =>
        (
          await must(
            api.request("POST", "/apis/authentication.k8s.io/v1/tokenreviews", {
              apiVersion: "authentication.k8s.io/v1",
              kind: "TokenReview",
              spec: { token: issued.status.token, audiences },
            }),
            201,
          )
        ).status;
      const accepted = await review(["vmlet.test", "another"]);
      expect(accepted).toMatchObject({
        authenticated: true,
        audiences: ["vmlet.test"],
        user: { username: `system:serviceaccount:${ns}:default` },
      });
      expect(accepted.user.groups).toContain(`system:serviceaccounts:${ns}`);
      expect(accepted.user.extra["authentication.kubernetes.io/pod-name"]).toEqual(["p"]);
      expect((await review(["elsewhere"])).authenticated).toBeFalsy();
    },
  },
  {
    name: "a token bound to another pod of the name is refused",
    async run(api, ns) {
      await must(api.request("POST", podsIn(ns), pod("p")), 201);
      const answer = await api.request("POST", `${inNamespace(ns, "serviceaccounts", "default")}/token`, {
        apiVersion: "authentication.k8s.io/v1",
        kind: "TokenRequest",
        spec: { audiences: [], boundObjectRef: { apiVersion: "v1", kind: "Pod", name: "p", uid: "other" } },
      });
      expectStatus(answer, { code: 409, reason: "Conflict" });
    },
  },
  {
    name: "a SubjectAccessReview tells administrators from strangers",
    async run(api, ns) {
      const ask = async (spec: Json) =>
        (
          await must(
            api.request("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", {
              spec: { resourceAttributes: { verb: "get", resource: "pods", namespace: ns }, ...spec },
            }),
            201,
          )
        ).status.allowed as boolean;
      expect(await ask({ user: "a", groups: ["system:masters"] })).toBe(true);
      expect(await ask({ user: "stranger", groups: ["system:authenticated"] })).toBe(false);
    },
  },
  {
    name: "SelfSubjectReview says who asks, after impersonation",
    async run(api) {
      const answer = await must(
        api.request(
          "POST",
          "/apis/authentication.k8s.io/v1/selfsubjectreviews",
          { apiVersion: "authentication.k8s.io/v1", kind: "SelfSubjectReview" },
          { "impersonate-user": "system:node:n", "impersonate-group": "system:nodes" },
        ),
        201,
      );
      expect(answer.status.userInfo.username).toBe("system:node:n");
      expect(answer.status.userInfo.groups.toSorted()).toEqual(["system:authenticated", "system:nodes"]);
    },
  },
  {
    name: "a wrong bearer token is 401",
    async run(api, ns) {
      expectStatus(await api.request("GET", podsIn(ns), undefined, { authorization: "Bearer nonsense" }), {
        code: 401,
        reason: "Unauthorized",
        message: "Unauthorized",
      });
    },
  },
  {
    name: "somebody without rights is 403 and told what he may not do",
    async run(api, ns) {
      const answer = await api.request("GET", podsIn(ns, "p"), undefined, { "impersonate-user": "stranger" });
      expectStatus(answer, {
        code: 403,
        reason: "Forbidden",
        message: `pods "p" is forbidden: User "stranger" cannot get resource "pods" in API group "" in the namespace "${ns}"`,
      });
    },
  },
];
