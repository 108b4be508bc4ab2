import { expect, test } from "vitest";
import { smoke, type SmokeKube } from "../../../src/cli/smoke.ts";
import { VirtualClock } from "../../support/virtual-clock.ts";

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
    node: "burst-0",
    namespace: "default",
    image: "busybox",
    restricted: false,
    timeoutMs: 180_000,
    step: () => {},
    signal: stop.signal,
  });
  const failed = expect(running).rejects.toThrow("stopped by SIGTERM");
  await clock.advance(2_000);
  stop.abort(new Error("stopped by SIGTERM"));
  await failed;
  expect(requests.at(0)).toBe("POST");
  expect(requests.at(-1)).toBe("DELETE");
});
