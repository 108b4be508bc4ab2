/** What a create fills in, keeps and refuses. */
import { expect } from "vitest";
import { configMap, expectStatus, mapsIn, must, pod, podsIn, type FidelityCase } from "../support.ts";

export const creationCases: readonly FidelityCase[] = [
  {
    name: "a pod gets the defaults of the API",
    async run(api, ns) {
      const created = await must(
        api.request(
          "POST",
          podsIn(ns),
          pod("p", {
            containers: [
              { name: "a", image: "busybox" },
              {
                name: "b",
                image: "busybox:1.36",
                ports: [{ containerPort: 80 }],
                livenessProbe: { httpGet: { port: 80 } },
              },
            ],
          }),
        ),
        201,
      );
      expect(created.spec).toMatchObject({
        restartPolicy: "Always",
        dnsPolicy: "ClusterFirst",
        terminationGracePeriodSeconds: 30,
        securityContext: {},
        schedulerName: "nobody",
        enableServiceLinks: true,
        serviceAccountName: "default",
        serviceAccount: "default",
        priority: 0,
        preemptionPolicy: "PreemptLowerPriority",
        tolerations: [
          { key: "node.kubernetes.io/not-ready", operator: "Exists", effect: "NoExecute", tolerationSeconds: 300 },
          { key: "node.kubernetes.io/unreachable", operator: "Exists", effect: "NoExecute", tolerationSeconds: 300 },
        ],
      });
      const [a, b] = created.spec.containers;
      expect(a).toMatchObject({
        imagePullPolicy: "Always",
        resources: {},
        terminationMessagePath: "/dev/termination-log",
        terminationMessagePolicy: "File",
      });
      expect(b.imagePullPolicy).toBe("IfNotPresent");
      expect(b.ports).toEqual([{ containerPort: 80, protocol: "TCP" }]);
      expect(b.livenessProbe).toEqual({
        httpGet: { path: "/", port: 80, scheme: "HTTP" },
        timeoutSeconds: 1,
        periodSeconds: 10,
        successThreshold: 1,
        failureThreshold: 3,
      });
      expect(created.status).toEqual({ phase: "Pending", qosClass: "BestEffort" });
      expect(created.metadata.generation).toBe(1);
      expect(created.metadata.uid).toMatch(/^[0-9a-f-]{36}$/);
    },
  },
  {
    name: "a pod gets the service account's projected volume",
    async run(api, ns) {
      const created = await must(api.request("POST", podsIn(ns), pod("p")), 201);
      const volume = created.spec.volumes[0];
      expect(volume.name).toMatch(/^kube-api-access-[a-z0-9]{5}$/);
      expect(volume.projected).toEqual({
        defaultMode: 420,
        sources: [
          { serviceAccountToken: { expirationSeconds: 3607, path: "token" } },
          { configMap: { name: "kube-root-ca.crt", items: [{ key: "ca.crt", path: "ca.crt" }] } },
          {
            downwardAPI: {
              items: [{ path: "namespace", fieldRef: { apiVersion: "v1", fieldPath: "metadata.namespace" } }],
            },
          },
        ],
      });
      expect(created.spec.containers[0].volumeMounts).toEqual([
        { name: volume.name, readOnly: true, mountPath: "/var/run/secrets/kubernetes.io/serviceaccount" },
      ]);
    },
  },
  {
    name: "a pod without automounting gets no volume",
    async run(api, ns) {
      const created = await must(
        api.request("POST", podsIn(ns), pod("p", { automountServiceAccountToken: false })),
        201,
      );
      expect(created.spec.volumes).toBeUndefined();
      expect(created.spec.automountServiceAccountToken).toBe(false);
    },
  },
  {
    name: "the QoS class is computed at creation and quantities are made canonical",
    async run(api, ns) {
      const resources = { limits: { cpu: "1000m", memory: "1024Mi" }, requests: { cpu: 0.5 } };
      const created = await must(
        api.request("POST", podsIn(ns), pod("p", { containers: [{ name: "a", image: "i", resources }] })),
        201,
      );
      expect(created.status.qosClass).toBe("Burstable");
      expect(created.spec.containers[0].resources).toEqual({
        limits: { cpu: "1", memory: "1Gi" },
        requests: { cpu: "500m", memory: "1Gi" },
      });
    },
  },
  {
    name: "fields that are empty or zero are not stored",
    async run(api, ns) {
      const created = await must(
        api.request(
          "POST",
          podsIn(ns),
          pod("p", {
            hostNetwork: false,
            hostname: "",
            volumes: [],
            nodeSelector: {},
            containers: [{ name: "a", image: "i", args: [], tty: false, env: [{ name: "E", value: "" }] }],
          }),
        ),
        201,
      );
      for (const field of ["hostNetwork", "hostname", "nodeSelector"]) expect(created.spec).not.toHaveProperty(field);
      expect(created.spec.containers[0]).not.toHaveProperty("args");
      expect(created.spec.containers[0]).not.toHaveProperty("tty");
      expect(created.spec.containers[0].env).toEqual([{ name: "E" }]);
    },
  },
  {
    name: "generateName adds five characters",
    async run(api, ns) {
      const created = await must(api.request("POST", mapsIn(ns), { metadata: { generateName: "gen-" } }), 201);
      expect(created.metadata.name).toMatch(/^gen-[bcdfghjklmnpqrstvwxz2456789]{5}$/);
      expect(created.metadata.generateName).toBe("gen-");
    },
  },
  {
    name: "a name that is taken is 409 AlreadyExists",
    async run(api, ns) {
      await must(api.request("POST", mapsIn(ns), configMap("m")), 201);
      const again = await api.request("POST", mapsIn(ns), configMap("m"));
      expectStatus(again, { code: 409, reason: "AlreadyExists", message: 'configmaps "m" already exists' });
      expect(again.body.details).toEqual({ name: "m", kind: "configmaps" });
    },
  },
  {
    name: "a namespace that does not exist is 404",
    async run(api) {
      const answer = await api.request("POST", mapsIn("no-such-namespace"), configMap("m"));
      expectStatus(answer, { code: 404, reason: "NotFound", message: 'namespaces "no-such-namespace" not found' });
    },
  },
  {
    name: "a namespace in the body that differs from the path's is 400",
    async run(api, ns) {
      const answer = await api.request("POST", mapsIn(ns), configMap("m", {}, { namespace: "other" }));
      expectStatus(answer, {
        code: 400,
        reason: "BadRequest",
        message: "the namespace of the provided object does not match the namespace sent on the request",
      });
    },
  },
  {
    name: "a service account that does not exist forbids the pod",
    async run(api, ns) {
      const answer = await api.request("POST", podsIn(ns), pod("p", { serviceAccountName: "ghost" }));
      expectStatus(answer, {
        code: 403,
        reason: "Forbidden",
        message: `pods "p" is forbidden: error looking up service account ${ns}/ghost: serviceaccount "ghost" not found`,
      });
    },
  },
  {
    name: "a priority class that does not exist forbids the pod",
    async run(api, ns) {
      const answer = await api.request("POST", podsIn(ns), pod("p", { priorityClassName: "ghost" }));
      expectStatus(answer, {
        code: 403,
        reason: "Forbidden",
        message: 'pods "p" is forbidden: no PriorityClass with name ghost was found',
      });
    },
  },
  {
    name: "a built-in priority class sets the pod's priority",
    async run(api, ns) {
      const created = await must(
        api.request("POST", podsIn(ns), pod("p", { priorityClassName: "system-node-critical" })),
        201,
      );
      expect(created.spec.priority).toBe(2_000_001_000);
    },
  },
];
