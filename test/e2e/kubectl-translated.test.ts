/**
 * API servers before 1.36 do not pass kubectl's WebSockets on: they speak SPDY to the kubelet and translate. A feature gate
 * makes the one at hand do the same.
 */
import { afterAll, beforeAll, expect, test } from "vitest";
import { startRealEnvironment } from "./cases/start.ts";
import { createStreamPods, describeStreams, type StreamPods } from "./kubectl-stream-cases.ts";
import { proxiedWebSockets, versions } from "./kubectl-support.ts";

let env: Awaited<ReturnType<typeof startRealEnvironment>>;
let on: StreamPods;
beforeAll(async () => {
  env = await startRealEnvironment({
    nodeName: "vmlet-translated",
    node: { taints: [] },
    cluster: { apiServerFlags: ["--feature-gates=ExtendWebSocketsToKubelet=false"] },
  });
  on = await createStreamPods(env);
}, 1_200_000);
afterAll(() => env?.[Symbol.asyncDispose]());

for (const version of versions)
  describeStreams({ version, transport: "WebSocket" }, () => ({ env, on }), { copyMiB: 5 });

test("the API server translated every one of these WebSockets [X14]", async () => {
  const kinds = [...(await proxiedWebSockets(env.client)).keys()].toSorted();
  expect(kinds).toEqual(["attach", "exec", "portforward"].map((kind) => `${kind} translated_at_apiserver`));
});
