/** What the cases share: paths, objects, and what they expect of a Status. */
import { randomUUID } from "node:crypto";
import { expect } from "vitest";
import type { Answer, Api, Json } from "./api.ts";

export interface FidelityCase {
  name: string;
  run(api: Api, namespace: string): Promise<void>;
}

export const MERGE = { "content-type": "application/merge-patch+json" };
export const STRATEGIC = { "content-type": "application/strategic-merge-patch+json" };
export const JSON_PATCH = { "content-type": "application/json-patch+json" };
export const APPLY = { "content-type": "application/apply-patch+yaml" };
export const TABLE = { accept: "application/json;as=Table;v=v1;g=meta.k8s.io,application/json" };

export const inNamespace = (namespace: string, resource: string, name?: string) =>
  `/api/v1/namespaces/${namespace}/${resource}${name === undefined ? "" : `/${name}`}`;
export const podsIn = (namespace: string, name?: string) => inNamespace(namespace, "pods", name);
export const mapsIn = (namespace: string, name?: string) => inNamespace(namespace, "configmaps", name);
export const leasesIn = (namespace: string, name?: string) =>
  `/apis/coordination.k8s.io/v1/namespaces/${namespace}/leases${name === undefined ? "" : `/${name}`}`;

/** A pod that no scheduler takes; `nodeName` binds it. */
export function pod(name: string, spec: Json = {}, metadata: Json = {}): Json {
  return {
    apiVersion: "v1",
    kind: "Pod",
    metadata: { name, ...metadata },
    spec: { schedulerName: "nobody", containers: [{ name: "a", image: "busybox:1.36" }], ...spec },
  };
}

export const configMap = (name: string, data: Record<string, string> = {}, metadata: Json = {}): Json => ({
  apiVersion: "v1",
  kind: "ConfigMap",
  metadata: { name, ...metadata },
  data,
});

export async function must(answer: Promise<Answer>, status?: number): Promise<Json> {
  const { status: got, body } = await answer;
  if (status === undefined ? got >= 300 : got !== status)
    throw new Error(`expected ${status ?? "success"}, got ${got}: ${JSON.stringify(body)}`);
  return body;
}

/** A Status must say all of this. */
export function expectStatus(
  answer: Answer,
  expected: { code: number; reason: string; message?: string | RegExp },
): void {
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

export const seconds = (text: string) => Date.parse(text) / 1000;

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
