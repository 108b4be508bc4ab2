import { X509Certificate } from "node:crypto";
import { request as httpsRequest } from "node:https";
import { afterEach, beforeEach, expect, test } from "vitest";
import { secretOf } from "../../../src/cli/webhook-secret.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { systemClock } from "../../../src/util/clock.ts";
import { WebhookServer } from "../../../src/webhook/server.ts";
import { caCert, clientCert, serverCert, serverKey } from "../../support/tls.ts";

const nodes = { label: { key: "type", value: "virtual-kubelet" }, taint: "virtual-kubelet.io/provider" };
let server: WebhookServer;
let port: number;

beforeEach(async () => {
  const tls = { cert: serverCert, key: serverKey };
  server = new WebhookServer({ host: "127.0.0.1", port: 0, tls, nodes, clock: systemClock, logger: silentLogger });
  ({ port } = await server.listen());
});

afterEach(() => server.close());

function ask(path: string, body: string, method = "POST"): Promise<{ status: number; text: string }> {
  return new Promise((resolve, reject) => {
    const sent = httpsRequest({ host: "127.0.0.1", port, path, method, ca: caCert, agent: false }, (reply) => {
      let text = "";
      reply.on("data", (chunk: Buffer) => (text += chunk.toString()));
      reply.on("end", () => resolve({ status: reply.statusCode ?? 0, text }));
    });
    sent.on("error", reject);
    sent.end(body);
  });
}

const review = (request: object) =>
  JSON.stringify({
    apiVersion: "admission.k8s.io/v1",
    kind: "AdmissionReview",
    request: {
      uid: "u1",
      operation: "CREATE",
      namespace: "team",
      resource: { group: "", version: "v1", resource: "pods" },
      object: { metadata: {}, spec: { containers: [] } },
      ...request,
    },
  });

interface Reply {
  apiVersion: string;
  kind: string;
  response: { uid: string; allowed: boolean; patchType?: string; patch?: string; warnings?: string[] };
}

async function answerTo(path: string, request: object = {}): Promise<Reply["response"]> {
  const { status, text } = await ask(path, review(request));
  expect(status).toBe(200);
  const { apiVersion, kind, response } = JSON.parse(text) as Reply;
  expect({ apiVersion, kind }).toEqual({ apiVersion: "admission.k8s.io/v1", kind: "AdmissionReview" });
  return response;
}

test("the path says which policy the namespace has, and the answer is a JSON patch", async () => {
  const { patch = "", ...response } = await answerTo("/enforce?timeout=2s");
  expect(response).toEqual({ uid: "u1", allowed: true, patchType: "JSONPatch" });
  const operations = JSON.parse(Buffer.from(patch, "base64").toString()) as { path: string }[];
  expect(operations.map(({ path }) => path)).toEqual(["/spec/nodeSelector", "/spec/tolerations"]);
});

test("a pod that is placed already gets no patch", async () => {
  const spec = {
    nodeSelector: { type: "virtual-kubelet" },
    tolerations: [{ key: "virtual-kubelet.io/provider", operator: "Exists" }],
  };
  expect(await answerTo("/enforce", { object: { spec } })).toEqual({ uid: "u1", allowed: true });
});

test("who creates a pod that is not placed is warned", async () => {
  const { allowed, warnings } = await answerTo("/enforce", { object: { spec: { nodeSelector: { type: "metal" } } } });
  expect(allowed).toBe(true);
  expect(warnings).toEqual([expect.stringContaining("type is metal")]);
});

test.each([
  ["an update", { operation: "UPDATE" }],
  ["another resource", { resource: { group: "apps", resource: "deployments" } }],
  ["a binding", { subResource: "binding" }],
  ["no object", { object: null }],
  ["an object without a spec", { object: {} }],
])("%s is let through as it is", async (_what, request) => {
  expect(await answerTo("/overflow", request)).toEqual({ uid: "u1", allowed: true });
});

test.each([
  [404, "/", "POST", review({})],
  [404, "/off", "POST", review({})],
  [405, "/enforce", "GET", ""],
  [400, "/enforce", "POST", "{"],
  [400, "/enforce", "POST", "null"],
  [400, "/enforce", "POST", '{"request":{"uid":""}}'],
  [413, "/enforce", "POST", " ".repeat((4 << 20) + 1)],
])("is answered %i: %s %s", async (status, path, method, body) => {
  expect((await ask(path, body, method)).status).toBe(status);
});

test("metrics count what became of pods", async () => {
  await answerTo("/enforce");
  await answerTo("/overflow", { namespace: "kube-system" });
  const text = await server.registry.metrics();
  expect(text).toContain('vmlet_webhook_reviews_total{policy="enforce",outcome="placed"} 1');
  expect(text).toContain('vmlet_webhook_reviews_total{policy="overflow",outcome="system namespace"} 1');
});

test("a certificate without its key is refused, and the one before stays", async () => {
  expect(() => server.setTls({ cert: clientCert, key: serverKey })).toThrow();
  expect((await answerTo("/enforce")).allowed).toBe(true);
});

test("the printed Secret has a certificate for the Service's name, which its CA has signed", () => {
  const { stringData } = secretOf("s", "ns", "vmlet-webhook", Date.now());
  const cert = new X509Certificate(stringData["tls.crt"]);
  const authority = new X509Certificate(stringData["ca.crt"]);
  expect(cert.checkHost("vmlet-webhook.ns.svc")).toBe("vmlet-webhook.ns.svc");
  expect(authority.ca && cert.verify(authority.publicKey) && cert.checkIssued(authority)).toBe(true);
  expect(() => server.setTls({ cert: stringData["tls.crt"], key: stringData["tls.key"] })).not.toThrow();
});
