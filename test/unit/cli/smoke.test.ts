import { expect, test } from "vitest";
import { KubeApiError } from "../../../src/kube/errors.ts";
import type { Pod } from "../../../src/kube/wire.ts";
import { matchesNodeSelectorTerms } from "../../../src/resources/labels.ts";
import { smoke, type SmokeKube } from "../../../src/cli/smoke.ts";
import { VirtualClock } from "../../support/virtual-clock.ts";

const OPTIONS = {
  node: "burst-0",
  namespace: "default",
  image: "busybox",
  restricted: false,
  timeoutMs: 180_000,
  step: () => {},
};

test("a smoke test that is stopped deletes its pod and says that it was stopped", async () => {
  const clock = new VirtualClock();
  const stop = new AbortController();
  const requests: string[] = [];
  const kube = {
    request({ method, signal }: { method: string; signal: AbortSignal }) {
      requests.push(method);
      if (signal.aborted) return Promise.reject(signal.reason as Error);
      return Promise.resolve({ metadata: { name: "vmlet-smoke-x", uid: "u" }, status: { phase: "Pending" } });
    },
  } as unknown as SmokeKube;
  const running = smoke({
    kube,
    clock,
    ...OPTIONS,
    signal: stop.signal,
  });
  const failed = expect(running).rejects.toThrow("stopped by SIGTERM");
  await clock.advance(2_000);
  stop.abort(new Error("stopped by SIGTERM"));
  await failed;
  expect(requests.find((method) => method !== "GET")).toBe("POST");
  expect(requests.at(-1)).toBe("DELETE");
});

test("a smoke test's pod is scheduled to the node of that name, whatever its hostname", async () => {
  let created: Pod | undefined;
  const kube = {
    request({ body }: { body?: Pod }) {
      created ??= body;
      return Promise.resolve({ metadata: { name: "vmlet-smoke-x", uid: "u" }, status: { phase: "Failed" } });
    },
  } as unknown as SmokeKube;
  await expect(
    smoke({
      kube,
      clock: new VirtualClock(),
      ...OPTIONS,
      signal: new AbortController().signal,
    }),
  ).rejects.toThrow("the pod failed");
  const { nodeName, nodeSelector, affinity } = created!.spec!;
  const terms = affinity!.nodeAffinity!.requiredDuringSchedulingIgnoredDuringExecution!.nodeSelectorTerms;
  const labels = { "kubernetes.io/hostname": "elsewhere" };
  expect(matchesNodeSelectorTerms({ name: "burst-0", labels }, terms)).toBe(true);
  expect(matchesNodeSelectorTerms({ name: "burst-1", labels }, terms)).toBe(false);
  // The scheduler is part of what is tested.
  expect([nodeName, nodeSelector]).toEqual([undefined, undefined]);
});

test("a smoke test of a Node that is not there says so, and makes no pod", async () => {
  const requests: string[] = [];
  const kube = {
    request({ method }: { method: string }) {
      requests.push(method);
      return Promise.reject(new KubeApiError("not found", { status: 404, reason: "NotFound" }));
    },
  } as unknown as SmokeKube;
  const signal = new AbortController().signal;
  await expect(smoke({ kube, clock: new VirtualClock(), ...OPTIONS, node: "nope", signal })).rejects.toThrow(
    "there is no Node nope",
  );
  expect(requests).toEqual(["GET"]);
});
