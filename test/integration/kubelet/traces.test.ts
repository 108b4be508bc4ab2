/** Whose traces the kubelet API continues. */
import { expect, test } from "vitest";
import { contextOf, RecordedTracing } from "../../support/recorded-tracing.ts";
import { ask } from "./client.ts";
import { startKubelet } from "./support.ts";

const LOGS = "/containerLogs/default/p/main";

test("a log that the API server asks for is part of its trace; another caller's word for that is not taken", async () => {
  const tracing = new RecordedTracing();
  await using kubelet = await startKubelet({ tracing });
  const headers = { ...contextOf(9) };
  expect((await ask(kubelet, LOGS, { headers })).status).toBe(200);
  expect((await ask(kubelet, LOGS, { headers, as: { token: "good" } })).status).toBe(200);
  expect((await ask(kubelet, LOGS, { headers: { traceparent: "00-hostile-01" } })).status).toBe(200);
  expect(tracing.spans.map(({ name, kind, parent }) => ({ name, kind, parent }))).toEqual(
    [contextOf(9), undefined, undefined].map((parent) => ({
      name: "GET /containerLogs/:namespace/:pod/:container",
      kind: "server",
      parent,
    })),
  );
  expect(tracing.spans[0]!.attributes).toMatchObject({
    "k8s.namespace.name": "default",
    "k8s.pod.name": "p",
    "k8s.container.name": "main",
  });
});

test("what only scrapes, and who is refused, begins no trace", async () => {
  const tracing = new RecordedTracing();
  await using kubelet = await startKubelet({ tracing });
  const headers = { ...contextOf(9) };
  for (const path of ["/pods", "/metrics", "/healthz"]) await ask(kubelet, path, { headers });
  expect((await ask(kubelet, LOGS, { headers, as: "none" })).status).toBe(401);
  expect(tracing.spans).toEqual([]);
});
