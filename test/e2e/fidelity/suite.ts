/**
 * What a client of the API may rely on, as cases that run against any API server: against devcluster in `npm test`, and
 * unchanged against the real kube-apiserver, which thereby says whether the cases themselves are true.
 *
 * Every case has a namespace of its own with a `default` service account. No case needs a scheduler or a controller, and
 * none is disturbed by one: pods are bound by `nodeName` to a node that nobody runs, or name a scheduler that is not there.
 */
import { randomUUID } from "node:crypto";
import { expect } from "vitest";
import type { Answer, Api, Json } from "./api.ts";

export interface FidelityCase {
  name: string;
  run(api: Api, namespace: string): Promise<void>;
}

const MERGE = { "content-type": "application/merge-patch+json" };
const STRATEGIC = { "content-type": "application/strategic-merge-patch+json" };
const JSON_PATCH = { "content-type": "application/json-patch+json" };
const APPLY = { "content-type": "application/apply-patch+yaml" };
const TABLE = { accept: "application/json;as=Table;v=v1;g=meta.k8s.io,application/json" };

const inNamespace = (namespace: string, resource: string, name?: string) =>
  `/api/v1/namespaces/${namespace}/${resource}${name === undefined ? "" : `/${name}`}`;
const podsIn = (namespace: string, name?: string) => inNamespace(namespace, "pods", name);
const mapsIn = (namespace: string, name?: string) => inNamespace(namespace, "configmaps", name);
const leasesIn = (namespace: string, name?: string) =>
  `/apis/coordination.k8s.io/v1/namespaces/${namespace}/leases${name === undefined ? "" : `/${name}`}`;

/** A pod that no scheduler takes; `nodeName` binds it. */
function pod(name: string, spec: Json = {}, metadata: Json = {}): Json {
  return {
    apiVersion: "v1",
    kind: "Pod",
    metadata: { name, ...metadata },
    spec: { schedulerName: "nobody", containers: [{ name: "a", image: "busybox:1.36" }], ...spec },
  };
}

const configMap = (name: string, data: Record<string, string> = {}, metadata: Json = {}): Json => ({
  apiVersion: "v1",
  kind: "ConfigMap",
  metadata: { name, ...metadata },
  data,
});

async function must(answer: Promise<Answer>, status?: number): Promise<Json> {
  const { status: got, body } = await answer;
  if (status === undefined ? got >= 300 : got !== status)
    throw new Error(`expected ${status ?? "success"}, got ${got}: ${JSON.stringify(body)}`);
  return body;
}

/** A Status must say all of this. */
function expectStatus(answer: Answer, expected: { code: number; reason: string; message?: string | RegExp }): void {
  expect(answer.body).toMatchObject({
    kind: "Status",
    apiVersion: "v1",
    status: "Failure",
    reason: expected.reason,
    code: expected.code,
  });
  expect(answer.status).toBe(expected.code);
  if (typeof expected.message === "string") expect(answer.body.message).toBe(expected.message);
  if (expected.message instanceof RegExp) expect(answer.body.message).toMatch(expected.message);
}

const seconds = (text: string) => Date.parse(text) / 1000;

/** Prepares a namespace as the controllers of a full cluster would, whether they run or not. */
export async function prepareNamespace(api: Api): Promise<string> {
  const name = `fidelity-${randomUUID().slice(0, 8)}`;
  await must(
    api.request("POST", "/api/v1/namespaces", { apiVersion: "v1", kind: "Namespace", metadata: { name } }),
    201,
  );
  const account = await api.request("POST", inNamespace(name, "serviceaccounts"), {
    apiVersion: "v1",
    kind: "ServiceAccount",
    metadata: { name: "default" },
  });
  expect([201, 409]).toContain(account.status);
  return name;
}

export const fidelityCases: readonly FidelityCase[] = [
  // ---- creation ----
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
  // ---- validation ----
  {
    name: "a pod without a name, containers or image is 422 and every cause is listed",
    async run(api, ns) {
      const unnamed = await api.request("POST", podsIn(ns), { metadata: {}, spec: { containers: [] } });
      expectStatus(unnamed, {
        code: 422,
        reason: "Invalid",
        message:
          'Pod "" is invalid: [metadata.name: Required value: name or generateName is required, spec.containers: Required value]',
      });
      expect(unnamed.body.details.causes).toEqual([
        {
          reason: "FieldValueRequired",
          message: "Required value: name or generateName is required",
          field: "metadata.name",
        },
        { reason: "FieldValueRequired", message: "Required value", field: "spec.containers" },
      ]);
      const imageless = await api.request("POST", podsIn(ns), pod("p", { containers: [{ name: "a" }] }));
      expectStatus(imageless, {
        code: 422,
        reason: "Invalid",
        message: 'Pod "p" is invalid: spec.containers[0].image: Required value',
      });
    },
  },
  {
    name: "a name that is no DNS subdomain is 422 with the rule",
    async run(api, ns) {
      const answer = await api.request("POST", podsIn(ns), pod("Bad_Name"));
      expectStatus(answer, {
        code: 422,
        reason: "Invalid",
        message:
          "Pod \"Bad_Name\" is invalid: metadata.name: Invalid value: \"Bad_Name\": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')",
      });
    },
  },
  {
    name: "two containers of one name are 422",
    async run(api, ns) {
      const answer = await api.request(
        "POST",
        podsIn(ns),
        pod("p", {
          containers: [
            { name: "a", image: "i" },
            { name: "a", image: "i" },
          ],
        }),
      );
      expectStatus(answer, {
        code: 422,
        reason: "Invalid",
        message: 'Pod "p" is invalid: spec.containers[1].name: Duplicate value: "a"',
      });
    },
  },
  {
    name: "a mount of a volume that is not there is 422",
    async run(api, ns) {
      const answer = await api.request(
        "POST",
        podsIn(ns),
        pod("p", { containers: [{ name: "a", image: "i", volumeMounts: [{ name: "v", mountPath: "/v" }] }] }),
      );
      expectStatus(answer, {
        code: 422,
        reason: "Invalid",
        message: 'Pod "p" is invalid: spec.containers[0].volumeMounts[0].name: Not found: "v"',
      });
    },
  },
  {
    name: "requests above limits are 422",
    async run(api, ns) {
      const answer = await api.request(
        "POST",
        podsIn(ns),
        pod("p", {
          containers: [{ name: "a", image: "i", resources: { limits: { cpu: "1" }, requests: { cpu: "2" } } }],
        }),
      );
      expectStatus(answer, {
        code: 422,
        reason: "Invalid",
        message:
          'Pod "p" is invalid: spec.containers[0].resources.requests: Invalid value: "2": must be less than or equal to cpu limit of 1',
      });
    },
  },
  {
    name: "an unknown restart policy is 422 with the supported ones",
    async run(api, ns) {
      const answer = await api.request("POST", podsIn(ns), pod("p", { restartPolicy: "Maybe" }));
      expectStatus(answer, {
        code: 422,
        reason: "Invalid",
        message:
          'Pod "p" is invalid: spec.restartPolicy: Unsupported value: "Maybe": supported values: "Always", "OnFailure", "Never"',
      });
    },
  },
  {
    name: "an unknown field is dropped with a warning, or refused when validation is strict",
    async run(api, ns) {
      const body = { ...configMap("m"), bogus: 1 };
      const warned = await api.request("POST", mapsIn(ns), body);
      expect(warned.status).toBe(201);
      expect(warned.headers["warning"]).toContain('299 - "unknown field \\"bogus\\""');
      expect(warned.body).not.toHaveProperty("bogus");
      const strict = await api.request("POST", `${mapsIn(ns)}?fieldValidation=Strict`, {
        ...configMap("m2"),
        bogus: 1,
      });
      expectStatus(strict, {
        code: 400,
        reason: "BadRequest",
        message: /strict decoding error: unknown field "bogus"$/,
      });
    },
  },
  {
    name: "a field of the wrong type is 400",
    async run(api, ns) {
      const answer = await api.request("POST", podsIn(ns), pod("p", { terminationGracePeriodSeconds: "soon" }));
      expectStatus(answer, {
        code: 400,
        reason: "BadRequest",
        message:
          /^Pod in version "v1" cannot be handled as a Pod: .*cannot unmarshal string into Go struct field .*spec\.terminationGracePeriodSeconds/,
      });
    },
  },
  {
    name: "a dry run answers as the real thing and stores nothing",
    async run(api, ns) {
      const answer = await api.request("POST", `${mapsIn(ns)}?dryRun=All`, configMap("m"));
      expect(answer.status).toBe(201);
      expect(answer.body.metadata).not.toHaveProperty("resourceVersion");
      expect((await api.request("GET", mapsIn(ns, "m"))).status).toBe(404);
    },
  },
  // ---- requests that cannot be served ----
  {
    name: "what does not exist is 404 NotFound with details",
    async run(api, ns) {
      const answer = await api.request("GET", podsIn(ns, "ghost"));
      expectStatus(answer, { code: 404, reason: "NotFound", message: 'pods "ghost" not found' });
      expect(answer.body.details).toEqual({ name: "ghost", kind: "pods" });
      const lease = await api.request("GET", leasesIn(ns, "ghost"));
      expectStatus(lease, { code: 404, reason: "NotFound", message: 'leases.coordination.k8s.io "ghost" not found' });
      expect(lease.body.details).toEqual({ name: "ghost", group: "coordination.k8s.io", kind: "leases" });
    },
  },
  {
    name: "a resource of the core group that does not exist is 404",
    async run(api, ns) {
      expect((await api.request("GET", inNamespace(ns, "nonsenses"))).status).toBe(404);
    },
  },
  {
    name: "a method that a resource does not have is 405",
    async run(api, ns) {
      const answer = await api.request("PUT", mapsIn(ns), configMap("m"));
      expectStatus(answer, {
        code: 405,
        reason: "MethodNotAllowed",
        message: "the server does not allow this method on the requested resource",
      });
    },
  },
  {
    name: "a patch of no known kind is 415",
    async run(api, ns) {
      await must(api.request("POST", mapsIn(ns), configMap("m")), 201);
      const answer = await api.request("PATCH", mapsIn(ns, "m"), { data: {} }, { "content-type": "application/json" });
      expectStatus(answer, { code: 415, reason: "UnsupportedMediaType" });
    },
  },
  {
    name: "a body over three mebibytes is 413",
    async run(api, ns) {
      const answer = await api.request("POST", mapsIn(ns), configMap("m", { big: "x".repeat(3 * 1024 * 1024 + 1) }));
      expectStatus(answer, { code: 413, reason: "RequestEntityTooLarge", message: /limit is 3145728/ });
    },
  },
  {
    name: "a body that is no JSON is 400",
    async run(api, ns) {
      expect((await api.request("POST", mapsIn(ns), "{not json")).status).toBe(400);
    },
  },
  {
    name: "an Accept header that nothing satisfies is 406",
    async run(api, ns) {
      const answer = await api.request("GET", mapsIn(ns), undefined, { accept: "text/html" });
      expect(answer.status).toBe(406);
    },
  },
  // ---- optimistic concurrency and updates ----
  {
    name: "a PUT with an old resourceVersion is 409 Conflict",
    async run(api, ns) {
      const first = await must(api.request("POST", mapsIn(ns), configMap("m", { a: "1" })), 201);
      await must(api.request("PUT", mapsIn(ns, "m"), { ...first, data: { a: "2" } }), 200);
      const stale = await api.request("PUT", mapsIn(ns, "m"), { ...first, data: { a: "3" } });
      expectStatus(stale, {
        code: 409,
        reason: "Conflict",
        message:
          'Operation cannot be fulfilled on configmaps "m": the object has been modified; please apply your changes to the latest version and try again',
      });
    },
  },
  {
    name: "a PUT without resourceVersion overwrites a ConfigMap but not a Lease",
    async run(api, ns) {
      await must(api.request("POST", mapsIn(ns), configMap("m")), 201);
      await must(api.request("PUT", mapsIn(ns, "m"), configMap("m", { a: "1" })), 200);
      await must(api.request("POST", leasesIn(ns), { metadata: { name: "l" }, spec: { holderIdentity: "me" } }), 201);
      const answer = await api.request("PUT", leasesIn(ns, "l"), {
        metadata: { name: "l" },
        spec: { holderIdentity: "you" },
      });
      expectStatus(answer, {
        code: 422,
        reason: "Invalid",
        message: /metadata\.resourceVersion: Invalid value: .*must be specified for an update$/,
      });
    },
  },
  {
    name: "a PUT to a Lease that does not exist creates it, to a ConfigMap it is 404",
    async run(api, ns) {
      expect((await api.request("PUT", leasesIn(ns, "l"), { metadata: { name: "l" }, spec: {} })).status).toBe(201);
      expect((await api.request("PUT", mapsIn(ns, "m"), configMap("m"))).status).toBe(404);
    },
  },
  {
    name: "a PUT with another UID is 409",
    async run(api, ns) {
      const created = await must(api.request("POST", mapsIn(ns), configMap("m")), 201);
      const answer = await api.request(
        "PUT",
        mapsIn(ns, "m"),
        configMap("m", {}, { uid: "00000000-0000-0000-0000-000000000000" }),
      );
      expectStatus(answer, {
        code: 409,
        reason: "Conflict",
        message: new RegExp(
          `Precondition failed: UID in precondition: 00000000-0000-0000-0000-000000000000, UID in object meta: ${created.metadata.uid}$`,
        ),
      });
    },
  },
  {
    name: "a write that changes nothing makes no new version",
    async run(api, ns) {
      const created = await must(api.request("POST", mapsIn(ns), configMap("m", { a: "1" })), 201);
      const patched = await must(api.request("PATCH", mapsIn(ns, "m"), { data: { a: "1" } }, MERGE), 200);
      expect(patched.metadata.resourceVersion).toBe(created.metadata.resourceVersion);
    },
  },
  {
    name: "a name that differs from the URL's is 400",
    async run(api, ns) {
      await must(api.request("POST", mapsIn(ns), configMap("m")), 201);
      expectStatus(await api.request("PUT", mapsIn(ns, "m"), configMap("other")), {
        code: 400,
        reason: "BadRequest",
        message: "the name of the object (other) does not match the name on the URL (m)",
      });
    },
  },
  {
    name: "what the server owns in metadata cannot be changed",
    async run(api, ns) {
      const created = await must(api.request("POST", podsIn(ns), pod("p")), 201);
      const patched = await must(
        api.request(
          "PATCH",
          podsIn(ns, "p"),
          { metadata: { creationTimestamp: "2001-01-01T00:00:00Z", generation: 77, labels: { a: "b" } } },
          MERGE,
        ),
        200,
      );
      expect(patched.metadata.creationTimestamp).toBe(created.metadata.creationTimestamp);
      expect(patched.metadata.generation).toBe(1);
      expect(patched.metadata.labels).toEqual({ a: "b" });
      expectStatus(
        await api.request("PATCH", podsIn(ns, "p"), { metadata: { deletionTimestamp: "2001-01-01T00:00:00Z" } }, MERGE),
        {
          code: 422,
          reason: "Invalid",
          message:
            'Pod "p" is invalid: metadata.deletionTimestamp: Invalid value: "2001-01-01T00:00:00Z": field is immutable',
        },
      );
    },
  },
  // ---- patches ----
  {
    name: "a merge patch removes with null and replaces lists",
    async run(api, ns) {
      await must(api.request("POST", mapsIn(ns), configMap("m", { a: "1", b: "2" }, { labels: { x: "y" } })), 201);
      const patched = await must(
        api.request("PATCH", mapsIn(ns, "m"), { data: { a: null, c: "3" }, metadata: { labels: null } }, MERGE),
        200,
      );
      expect(patched.data).toEqual({ b: "2", c: "3" });
      expect(patched.metadata).not.toHaveProperty("labels");
    },
  },
  {
    name: "a JSON patch applies its operations in order, and a failing test changes nothing",
    async run(api, ns) {
      await must(api.request("POST", mapsIn(ns), configMap("m", { a: "1" })), 201);
      const patched = await must(
        api.request(
          "PATCH",
          mapsIn(ns, "m"),
          [
            { op: "test", path: "/data/a", value: "1" },
            { op: "replace", path: "/data/a", value: "2" },
            { op: "add", path: "/data/b", value: "3" },
          ],
          JSON_PATCH,
        ),
        200,
      );
      expect(patched.data).toEqual({ a: "2", b: "3" });
    },
  },
  {
    name: "a failing JSON patch is 422",
    async run(api, ns) {
      await must(api.request("POST", mapsIn(ns), configMap("m", { a: "1" })), 201);
      const answer = await api.request(
        "PATCH",
        mapsIn(ns, "m"),
        [{ op: "test", path: "/data/a", value: "9" }],
        JSON_PATCH,
      );
      expectStatus(answer, {
        code: 422,
        reason: "Invalid",
        message: "the server rejected our request due to an error in our request",
      });
    },
  },
  {
    name: "a strategic merge patch merges conditions by type and container statuses not at all",
    async run(api, ns) {
      await must(api.request("POST", podsIn(ns), pod("p", { nodeName: "nowhere" })), 201);
      const first = {
        status: {
          conditions: [
            { type: "Ready", status: "False" },
            { type: "Custom", status: "True" },
          ],
          containerStatuses: [{ name: "a", image: "i", imageID: "", ready: false, restartCount: 0 }],
        },
      };
      await must(api.request("PATCH", `${podsIn(ns, "p")}/status`, first, STRATEGIC), 200);
      const second = {
        status: {
          conditions: [{ type: "Ready", status: "True" }],
          containerStatuses: [{ name: "b", image: "i", imageID: "", ready: true, restartCount: 0 }],
        },
      };
      const patched = await must(api.request("PATCH", `${podsIn(ns, "p")}/status`, second, STRATEGIC), 200);
      expect(patched.status.conditions.map((c: Json) => [c.type, c.status])).toEqual([
        ["Ready", "True"],
        ["Custom", "True"],
      ]);
      expect(patched.status.containerStatuses.map((c: Json) => c.name)).toEqual(["b"]);
    },
  },
  {
    name: "$patch: delete, $setElementOrder and $retainKeys do as they say",
    async run(api, ns) {
      await must(api.request("POST", podsIn(ns), pod("p", { nodeName: "nowhere" })), 201);
      const status = `${podsIn(ns, "p")}/status`;
      await must(
        api.request(
          "PATCH",
          status,
          { status: { conditions: ["A", "B", "C"].map((type) => ({ type, status: "True" })) } },
          STRATEGIC,
        ),
        200,
      );
      const patch = {
        status: {
          "$setElementOrder/conditions": [{ type: "C" }, { type: "A" }],
          conditions: [{ type: "B", $patch: "delete" }],
        },
      };
      const patched = await must(api.request("PATCH", status, patch, STRATEGIC), 200);
      expect(patched.status.conditions.map((c: Json) => c.type)).toEqual(["C", "A"]);
    },
  },
  {
    name: "$deleteFromPrimitiveList removes finalizers and a plain list adds them",
    async run(api, ns) {
      await must(api.request("POST", mapsIn(ns), configMap("m", {}, { finalizers: ["a.example/x"] })), 201);
      const added = await must(
        api.request("PATCH", mapsIn(ns, "m"), { metadata: { finalizers: ["a.example/y"] } }, STRATEGIC),
        200,
      );
      expect(added.metadata.finalizers).toEqual(["a.example/y", "a.example/x"]);
      const removed = await must(
        api.request(
          "PATCH",
          mapsIn(ns, "m"),
          { metadata: { "$deleteFromPrimitiveList/finalizers": ["a.example/x", "a.example/y"] } },
          STRATEGIC,
        ),
        200,
      );
      expect(removed.metadata).not.toHaveProperty("finalizers");
    },
  },
  {
    name: "a patch with another UID is 422, with an old resourceVersion 409",
    async run(api, ns) {
      const created = await must(api.request("POST", podsIn(ns), pod("p")), 201);
      const wrong = await api.request(
        "PATCH",
        `${podsIn(ns, "p")}/status`,
        { metadata: { uid: "00000000-0000-0000-0000-000000000000" }, status: { message: "m" } },
        STRATEGIC,
      );
      expectStatus(wrong, {
        code: 422,
        reason: "Invalid",
        message:
          'Pod "p" is invalid: metadata.uid: Invalid value: "00000000-0000-0000-0000-000000000000": field is immutable',
      });
      await must(
        api.request(
          "PATCH",
          `${podsIn(ns, "p")}/status`,
          { metadata: { uid: created.metadata.uid }, status: { message: "m" } },
          STRATEGIC,
        ),
        200,
      );
      const stale = await api.request(
        "PATCH",
        `${podsIn(ns, "p")}/status`,
        { metadata: { resourceVersion: created.metadata.resourceVersion }, status: { message: "n" } },
        STRATEGIC,
      );
      expectStatus(stale, {
        code: 409,
        reason: "Conflict",
        message: /the object has been modified; please apply your changes to the latest version and try again$/,
      });
    },
  },
  {
    name: "server-side apply creates, merges by key and needs a field manager",
    async run(api, ns) {
      const body = { apiVersion: "v1", kind: "ConfigMap", metadata: { name: "m" }, data: { a: "1" } };
      expectStatus(await api.request("PATCH", mapsIn(ns, "m"), body, APPLY), {
        code: 422,
        reason: "Invalid",
        message: 'PatchOptions.meta.k8s.io "" is invalid: fieldManager: Required value: is required for apply patch',
      });
      expect((await api.request("PATCH", `${mapsIn(ns, "m")}?fieldManager=me`, body, APPLY)).status).toBe(201);
      await must(api.request("PATCH", mapsIn(ns, "m"), { data: { other: "9" } }, MERGE), 200);
      const applied = await must(
        api.request("PATCH", `${mapsIn(ns, "m")}?fieldManager=me`, { ...body, data: { a: "2" } }, APPLY),
        200,
      );
      expect(applied.data).toEqual({ a: "2", other: "9" });
    },
  },
  // ---- pods: spec, status, subresources ----
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
  // ---- deletion ----
  {
    name: "deleting a bound pod gives it its grace, and bumps the generation",
    async run(api, ns) {
      await must(
        api.request("POST", podsIn(ns), pod("p", { nodeName: "nowhere", terminationGracePeriodSeconds: 40 })),
        201,
      );
      const before = Date.now() / 1000;
      const answer = await must(api.request("DELETE", podsIn(ns, "p")), 200);
      expect(answer.metadata.deletionGracePeriodSeconds).toBe(40);
      expect(answer.metadata.generation).toBe(2);
      expect(Math.abs(seconds(answer.metadata.deletionTimestamp) - before - 40)).toBeLessThan(5);
      expect((await api.request("GET", podsIn(ns, "p"))).status).toBe(200);
    },
  },
  {
    name: "a second deletion can only shorten the grace",
    async run(api, ns) {
      await must(api.request("POST", podsIn(ns), pod("p", { nodeName: "nowhere" })), 201);
      const first = await must(api.request("DELETE", podsIn(ns, "p"), { gracePeriodSeconds: 60 }), 200);
      const longer = await must(api.request("DELETE", podsIn(ns, "p"), { gracePeriodSeconds: 90 }), 200);
      expect(longer.metadata.deletionGracePeriodSeconds).toBe(60);
      expect(longer.metadata.resourceVersion).toBe(first.metadata.resourceVersion);
      const shorter = await must(api.request("DELETE", podsIn(ns, "p"), { gracePeriodSeconds: 20 }), 200);
      expect(shorter.metadata.deletionGracePeriodSeconds).toBe(20);
      expect(seconds(first.metadata.deletionTimestamp) - seconds(shorter.metadata.deletionTimestamp)).toBe(40);
      expect(shorter.metadata.generation).toBe(2);
    },
  },
  {
    name: "a negative grace counts as one second",
    async run(api, ns) {
      await must(api.request("POST", podsIn(ns), pod("p", { nodeName: "nowhere" })), 201);
      expect(
        (await must(api.request("DELETE", podsIn(ns, "p"), { gracePeriodSeconds: -5 }), 200)).metadata
          .deletionGracePeriodSeconds,
      ).toBe(1);
    },
  },
  {
    name: "a pod that is not bound is deleted at once, and so is one that has ended",
    async run(api, ns) {
      await must(api.request("POST", podsIn(ns), pod("unbound")), 201);
      await must(api.request("DELETE", podsIn(ns, "unbound")), 200);
      expect((await api.request("GET", podsIn(ns, "unbound"))).status).toBe(404);
      await must(api.request("POST", podsIn(ns), pod("ended", { nodeName: "nowhere" })), 201);
      await must(
        api.request("PATCH", `${podsIn(ns, "ended")}/status`, { status: { phase: "Succeeded" } }, STRATEGIC),
        200,
      );
      await must(api.request("DELETE", podsIn(ns, "ended")), 200);
      expect((await api.request("GET", podsIn(ns, "ended"))).status).toBe(404);
    },
  },
  {
    name: "deleting with grace 0 shows watchers the deletion timestamp and then the deletion",
    async run(api, ns) {
      const created = await must(api.request("POST", podsIn(ns), pod("p", { nodeName: "nowhere" })), 201);
      const watch = await api.watch(`${podsIn(ns)}?watch=true&resourceVersion=${created.metadata.resourceVersion}`);
      await must(api.request("DELETE", podsIn(ns, "p"), { gracePeriodSeconds: 0 }), 200);
      const modified = await watch.nextChange();
      expect(modified.type).toBe("MODIFIED");
      expect(modified.object.metadata.deletionGracePeriodSeconds).toBe(0);
      const deleted = await watch.nextChange();
      expect(deleted.type).toBe("DELETED");
      expect(Number(deleted.object.metadata.resourceVersion)).toBeGreaterThan(
        Number(modified.object.metadata.resourceVersion),
      );
      watch.close();
    },
  },
  {
    name: "preconditions of a deletion that do not hold are 409",
    async run(api, ns) {
      const created = await must(api.request("POST", podsIn(ns), pod("p", { nodeName: "nowhere" })), 201);
      const wrong = await api.request("DELETE", podsIn(ns, "p"), {
        gracePeriodSeconds: 0,
        preconditions: { uid: "other" },
      });
      expectStatus(wrong, {
        code: 409,
        reason: "Conflict",
        message: `Operation cannot be fulfilled on Pod "p": the UID in the precondition (other) does not match the UID in record (${created.metadata.uid}). The object might have been deleted and then recreated`,
      });
      await must(
        api.request("DELETE", podsIn(ns, "p"), { gracePeriodSeconds: 0, preconditions: { uid: created.metadata.uid } }),
        200,
      );
    },
  },
  {
    name: "a finalizer holds a deleted pod until it is removed, and none can be added meanwhile",
    async run(api, ns) {
      await must(
        api.request("POST", podsIn(ns), pod("p", { nodeName: "nowhere" }, { finalizers: ["a.example/hold"] })),
        201,
      );
      await must(api.request("DELETE", podsIn(ns, "p"), { gracePeriodSeconds: 0 }), 200);
      expect((await must(api.request("GET", podsIn(ns, "p")), 200)).metadata.deletionGracePeriodSeconds).toBe(0);
      expectStatus(
        await api.request("PATCH", podsIn(ns, "p"), { metadata: { finalizers: ["a.example/more"] } }, STRATEGIC),
        {
          code: 422,
          reason: "Invalid",
          message:
            /metadata\.finalizers: Forbidden: no new finalizers can be added if the object is being deleted, found new finalizers \[\]string\{"a\.example\/more"\}$/,
        },
      );
      await must(api.request("PATCH", podsIn(ns, "p"), { metadata: { finalizers: null } }, MERGE), 200);
      expect((await api.request("GET", podsIn(ns, "p"))).status).toBe(404);
    },
  },
  {
    name: "a ConfigMap with a finalizer is marked, not deleted",
    async run(api, ns) {
      await must(api.request("POST", mapsIn(ns), configMap("m", {}, { finalizers: ["a.example/hold"] })), 201);
      const answer = await must(api.request("DELETE", mapsIn(ns, "m")), 200);
      expect(answer.kind).toBe("ConfigMap");
      expect(answer.metadata.deletionGracePeriodSeconds).toBe(0);
      await must(api.request("PATCH", mapsIn(ns, "m"), { metadata: { finalizers: null } }, MERGE), 200);
      expect((await api.request("GET", mapsIn(ns, "m"))).status).toBe(404);
    },
  },
  {
    name: "deleting a ConfigMap answers with a Status that names it",
    async run(api, ns) {
      const created = await must(api.request("POST", mapsIn(ns), configMap("m")), 201);
      const answer = await must(api.request("DELETE", mapsIn(ns, "m")), 200);
      expect(answer).toMatchObject({
        kind: "Status",
        status: "Success",
        details: { name: "m", kind: "configmaps", uid: created.metadata.uid },
      });
    },
  },
  {
    name: "deletecollection deletes what the selector selects and answers with the list",
    async run(api, ns) {
      for (const [name, color] of [
        ["m1", "red"],
        ["m2", "blue"],
        ["m3", "red"],
      ] as const)
        await must(api.request("POST", mapsIn(ns), configMap(name, {}, { labels: { color } })), 201);
      const answer = await must(api.request("DELETE", `${mapsIn(ns)}?labelSelector=color%3Dred`), 200);
      expect(answer.kind).toBe("ConfigMapList");
      const left = await must(api.request("GET", `${mapsIn(ns)}?labelSelector=color`), 200);
      expect(left.items.map((item: Json) => item.metadata.name)).toEqual(["m2"]);
    },
  },
  {
    name: "an eviction marks the pod as disrupted and deletes it with grace",
    async run(api, ns) {
      await must(api.request("POST", podsIn(ns), pod("p", { nodeName: "nowhere" })), 201);
      const answer = await must(
        api.request("POST", `${podsIn(ns, "p")}/eviction`, {
          apiVersion: "policy/v1",
          kind: "Eviction",
          metadata: { name: "p" },
          deleteOptions: { gracePeriodSeconds: 7 },
        }),
        201,
      );
      expect(answer).toMatchObject({ kind: "Status", status: "Success" });
      const after = await must(api.request("GET", podsIn(ns, "p")), 200);
      expect(after.metadata.deletionGracePeriodSeconds).toBe(7);
      expect(after.status.conditions).toMatchObject([
        {
          type: "DisruptionTarget",
          status: "True",
          reason: "EvictionByEvictionAPI",
          message: "Eviction API: evicting",
        },
      ]);
    },
  },
  {
    name: "nothing new is accepted in a namespace that is being deleted",
    async run(api, ns) {
      // The finalizer keeps the namespace in Terminating on a server that empties it, too.
      await must(
        api.request("POST", podsIn(ns), pod("p", { nodeName: "nowhere" }, { finalizers: ["a.example/hold"] })),
        201,
      );
      await must(api.request("DELETE", `/api/v1/namespaces/${ns}`), 200);
      const answer = await api.request("POST", inNamespace(ns, "events"), {
        metadata: { name: "e" },
        involvedObject: { kind: "Pod", namespace: ns, name: "p" },
        reason: "R",
        type: "Normal",
      });
      expectStatus(answer, {
        code: 403,
        reason: "Forbidden",
        message: `events "e" is forbidden: unable to create new content in namespace ${ns} because it is being terminated`,
      });
      expect(answer.body.details.causes).toEqual([
        { reason: "NamespaceTerminating", message: `namespace ${ns} is being terminated`, field: "metadata.namespace" },
      ]);
      await must(api.request("PATCH", podsIn(ns, "p"), { metadata: { finalizers: null } }, MERGE), 200);
    },
  },
  // ---- lists ----
  {
    name: "a list has a revision, is sorted by name, and its items have no kind",
    async run(api, ns) {
      for (const name of ["b", "a", "c"])
        await must(api.request("POST", mapsIn(ns), configMap(name, {}, { labels: { mine: "yes" } })), 201);
      const list = await must(api.request("GET", `${mapsIn(ns)}?labelSelector=mine`), 200);
      expect(list).toMatchObject({ kind: "ConfigMapList", apiVersion: "v1" });
      expect(list.items.map((item: Json) => item.metadata.name)).toEqual(["a", "b", "c"]);
      expect(list.items[0]).not.toHaveProperty("kind");
      expect(Number(list.metadata.resourceVersion)).toBeGreaterThanOrEqual(
        Number(list.items[2].metadata.resourceVersion),
      );
    },
  },
  {
    name: "label selectors know equality, sets and existence",
    async run(api, ns) {
      for (const [name, labels] of [
        ["m1", { e: "prod", t: "web" }],
        ["m2", { e: "test" }],
        ["m3", { t: "web" }],
      ] as const)
        await must(api.request("POST", mapsIn(ns), configMap(name, {}, { labels: { ...labels, mine: "yes" } })), 201);
      const select = async (selector: string) =>
        (
          await must(api.request("GET", `${mapsIn(ns)}?labelSelector=${encodeURIComponent(`mine,${selector}`)}`), 200)
        ).items.map((item: Json) => item.metadata.name as string);
      expect(await select("e=prod")).toEqual(["m1"]);
      expect(await select("e!=prod")).toEqual(["m2", "m3"]);
      expect(await select("e in (prod,test)")).toEqual(["m1", "m2"]);
      expect(await select("e notin (prod)")).toEqual(["m2", "m3"]);
      expect(await select("!e")).toEqual(["m3"]);
      expect(await select("e,t=web")).toEqual(["m1"]);
    },
  },
  {
    name: "field selectors select pods by node and phase, and an unknown field is 400",
    async run(api, ns) {
      await must(api.request("POST", podsIn(ns), pod("bound", { nodeName: "nowhere" })), 201);
      await must(api.request("POST", podsIn(ns), pod("free")), 201);
      const select = async (selector: string) =>
        (await must(api.request("GET", `${podsIn(ns)}?fieldSelector=${encodeURIComponent(selector)}`), 200)).items.map(
          (item: Json) => item.metadata.name as string,
        );
      expect(await select("spec.nodeName=nowhere")).toEqual(["bound"]);
      expect(await select("spec.nodeName=,status.phase=Pending")).toEqual(["free"]);
      expect(await select("metadata.name!=free")).toEqual(["bound"]);
      expectStatus(await api.request("GET", `${podsIn(ns)}?fieldSelector=spec.nope%3D1`), {
        code: 400,
        reason: "BadRequest",
        message: /field label not supported: spec\.nope$/,
      });
    },
  },
  {
    name: "a paged list is consistent: a page sees the state of the first page",
    async run(api, ns) {
      for (const name of ["a", "b", "c"]) await must(api.request("POST", leasesIn(ns), { metadata: { name } }), 201);
      const first = await must(api.request("GET", `${leasesIn(ns)}?limit=2`), 200);
      expect(first.items.map((item: Json) => item.metadata.name)).toEqual(["a", "b"]);
      expect(first.metadata.remainingItemCount).toBe(1);
      await must(api.request("POST", leasesIn(ns), { metadata: { name: "d" } }), 201);
      await must(api.request("DELETE", leasesIn(ns, "c")), 200);
      const second = await must(
        api.request("GET", `${leasesIn(ns)}?limit=2&continue=${encodeURIComponent(first.metadata.continue)}`),
        200,
      );
      expect(second.items.map((item: Json) => item.metadata.name)).toEqual(["c"]);
      expect(second.metadata.resourceVersion).toBe(first.metadata.resourceVersion);
      expect(second.metadata).not.toHaveProperty("continue");
    },
  },
  {
    name: "a list at an exact revision shows the past",
    async run(api, ns) {
      await must(api.request("POST", leasesIn(ns), { metadata: { name: "a" } }), 201);
      const then = await must(api.request("GET", leasesIn(ns)), 200);
      await must(api.request("DELETE", leasesIn(ns, "a")), 200);
      const past = await must(
        api.request(
          "GET",
          `${leasesIn(ns)}?resourceVersion=${then.metadata.resourceVersion}&resourceVersionMatch=Exact`,
        ),
        200,
      );
      expect(past.items.map((item: Json) => item.metadata.name)).toEqual(["a"]);
      expect((await must(api.request("GET", leasesIn(ns)), 200)).items).toEqual([]);
    },
  },
  {
    name: "a revision from the future is 504 with ResourceVersionTooLarge",
    async run(api, ns) {
      const answer = await api.request("GET", `${leasesIn(ns)}?resourceVersion=999999999999`);
      expectStatus(answer, {
        code: 504,
        reason: "Timeout",
        message: /Too large resource version: 999999999999, current: \d+$/,
      });
      expect(answer.body.details.causes).toContainEqual({
        reason: "ResourceVersionTooLarge",
        message: "Too large resource version",
      });
      expect(answer.body.details.retryAfterSeconds).toBe(1);
    },
  },
  // ---- watches ----
  {
    name: "a watch from a revision sends what came after it, in order",
    async run(api, ns) {
      const start = await must(api.request("GET", mapsIn(ns)), 200);
      await must(api.request("POST", mapsIn(ns), configMap("m")), 201);
      const watch = await api.watch(
        `${mapsIn(ns)}?watch=true&resourceVersion=${start.metadata.resourceVersion}&fieldSelector=metadata.name%3Dm`,
      );
      await must(api.request("PATCH", mapsIn(ns, "m"), { data: { a: "1" } }, MERGE), 200);
      await must(api.request("DELETE", mapsIn(ns, "m")), 200);
      const events = [await watch.nextChange(), await watch.nextChange(), await watch.nextChange()];
      expect(events.map((event) => event.type)).toEqual(["ADDED", "MODIFIED", "DELETED"]);
      expect(events[2]!.object).toMatchObject({ kind: "ConfigMap", apiVersion: "v1", data: { a: "1" } });
      const revisions = events.map((event) => Number(event.object.metadata.resourceVersion));
      expect(revisions).toEqual(revisions.toSorted((a, b) => a - b));
      watch.close();
    },
  },
  {
    name: "a watch without a revision starts with what there is",
    async run(api, ns) {
      for (const name of ["a", "b"]) await must(api.request("POST", leasesIn(ns), { metadata: { name } }), 201);
      for (const query of ["", "&resourceVersion=0"]) {
        const watch = await api.watch(`${leasesIn(ns)}?watch=true${query}`);
        const events = [await watch.nextChange(), await watch.nextChange()];
        expect(events.map((event) => [event.type, event.object.metadata.name])).toEqual([
          ["ADDED", "a"],
          ["ADDED", "b"],
        ]);
        watch.close();
      }
    },
  },
  {
    name: "an object that leaves the selector is DELETED for the watcher, in its last matching state",
    async run(api, ns) {
      const created = await must(api.request("POST", mapsIn(ns), configMap("m", {}, { labels: { in: "yes" } })), 201);
      const watch = await api.watch(
        `${mapsIn(ns)}?watch=true&resourceVersion=${created.metadata.resourceVersion}&labelSelector=in%3Dyes`,
      );
      const left = await must(
        api.request("PATCH", mapsIn(ns, "m"), { metadata: { labels: { in: "no" } } }, MERGE),
        200,
      );
      const gone = await watch.nextChange();
      expect(gone.type).toBe("DELETED");
      expect(gone.object.metadata).toMatchObject({
        resourceVersion: left.metadata.resourceVersion,
        labels: { in: "yes" },
      });
      await must(api.request("PATCH", mapsIn(ns, "m"), { metadata: { labels: { in: "yes" } } }, MERGE), 200);
      expect((await watch.nextChange()).type).toBe("ADDED");
      watch.close();
    },
  },
  {
    name: "a pod that is bound enters the watch of its node",
    async run(api, ns) {
      const node = `node-${ns}`;
      const created = await must(api.request("POST", podsIn(ns), pod("p")), 201);
      const watch = await api.watch(
        `/api/v1/pods?watch=true&resourceVersion=${created.metadata.resourceVersion}&fieldSelector=spec.nodeName%3D${node}`,
      );
      await must(
        api.request("POST", `${podsIn(ns, "p")}/binding`, {
          metadata: { name: "p" },
          target: { kind: "Node", name: node },
        }),
        201,
      );
      const event = await watch.nextChange();
      expect([event.type, event.object.metadata.name, event.object.spec.nodeName]).toEqual(["ADDED", "p", node]);
      watch.close();
    },
  },
  {
    name: "timeoutSeconds ends a watch cleanly",
    async run(api, ns) {
      const watch = await api.watch(`${mapsIn(ns)}?watch=true&resourceVersion=0&timeoutSeconds=1`);
      await watch.ended(10_000);
    },
  },
  {
    name: "sendInitialEvents ends the initial events with a bookmark",
    async run(api, ns) {
      await must(api.request("POST", leasesIn(ns), { metadata: { name: "a" } }), 201);
      const watch = await api.watch(
        `${leasesIn(ns)}?watch=true&sendInitialEvents=true&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan`,
      );
      expect((await watch.next()).type).toBe("ADDED");
      const bookmark = await watch.next();
      expect(bookmark.type).toBe("BOOKMARK");
      expect(bookmark.object.metadata.annotations).toEqual({ "k8s.io/initial-events-end": "true" });
      watch.close();
    },
  },
  // ---- other kinds ----
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
  // ---- tables and discovery ----
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
