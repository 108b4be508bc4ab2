/** Names of Services as hosts files have them, for machines that have no DNS. */
import { expect, onTestFinished, test, vi } from "vitest";
import type { Json } from "../../e2e/fidelity/api.ts";
import { create, runDevCluster } from "./support.ts";

async function setUp() {
  let hosts: ReadonlyMap<string, readonly string[]> = new Map();
  const running = await runDevCluster({ publishNames: (published) => (hosts = published) });
  onTestFinished(() => running[Symbol.asyncDispose]());
  const linesOf = (namespace: string, name: string) =>
    (hosts.get(namespace) ?? []).filter((line) => line.includes(name));
  return { api: running.api, linesOf };
}

const service = (name: string, spec: Json): Json => ({ metadata: { name }, spec: { ports: [{ port: 80 }], ...spec } });
const servicesOf = (namespace: string) => `/api/v1/namespaces/${namespace}/services`;

test("a Service is known by its name in its namespace, and by longer ones everywhere", async () => {
  const { api, linesOf } = await setUp();
  await create(api, "/api/v1/namespaces", { metadata: { name: "other" } });
  const { spec } = await create(api, servicesOf("default"), service("web", {}));
  const long = "web.default web.default.svc web.default.svc.cluster.local";
  await vi.waitFor(() => expect(linesOf("default", "web")).toEqual([`${spec.clusterIP} web ${long}`]));
  expect(linesOf("other", "web")).toEqual([`${spec.clusterIP} ${long}`]);
});

test("a Service that is deleted is not known any more", async () => {
  const { api, linesOf } = await setUp();
  await create(api, servicesOf("default"), service("web", {}));
  await vi.waitFor(() => expect(linesOf("default", "web")).toHaveLength(1));
  await api.request("DELETE", `${servicesOf("default")}/web`);
  await vi.waitFor(() => expect(linesOf("default", "web")).toEqual([]));
});

test("a Service without an address is all of its endpoints, each by its own name too where it has one", async () => {
  const { api, linesOf } = await setUp();
  await create(api, servicesOf("default"), service("peers", { clusterIP: "None" }));
  await create(api, "/api/v1/namespaces/default/endpoints", {
    metadata: { name: "peers" },
    subsets: [{ addresses: [{ ip: "10.64.0.1", hostname: "peers-0" }, { ip: "10.64.0.2" }], ports: [{ port: 80 }] }],
  });
  await vi.waitFor(() =>
    expect(linesOf("default", "peers").map((line) => line.split(" ").slice(0, 2))).toEqual([
      ["10.64.0.1", "peers"],
      ["10.64.0.1", "peers-0.peers"],
      ["10.64.0.2", "peers"],
    ]),
  );
});
