import { describe, expect, test, vi } from "vitest";
import { MemoryProvider } from "../../../providers/memory/index.ts";
import { instrument } from "../../../src/provider/instrument.ts";
import type { CallOptions, Provider } from "../../../src/provider/provider.ts";
import { unusedMetrics } from "../../../src/telemetry/metrics.ts";
import { VirtualClock, settle } from "../../support/virtual-clock.ts";

const { signal } = new AbortController();
const spec = { labels: {}, restart_policy: "never" as const, containers: [{ name: "c", image: "i" }] };

function setup(overrides: Partial<Provider>) {
  const clock = new VirtualClock();
  const metrics = unusedMetrics();
  const provider = instrument(Object.assign(new MemoryProvider(), overrides), metrics, clock);
  return { clock, metrics, provider };
}

/** What became of a call, without waiting for it. */
function watch(call: Promise<unknown>) {
  const seen: { error?: { code: string; message: string }; value?: unknown } = {};
  void call.then(
    (value) => Object.assign(seen, { value }),
    (thrown: unknown) => Object.assign(seen, { error: thrown }),
  );
  return seen;
}

const never = () => new Promise<never>(() => {});

describe("a call that the provider never answers", () => {
  test.each<[string, (provider: Provider) => Promise<unknown>]>([
    ["getInfo", (p) => p.getInfo({ signal })],
    ["createPod", (p) => p.createPod("m", spec, { signal })],
    ["getPod", (p) => p.getPod("m", { signal })],
    ["getPods", (p) => p.getPods({ signal, labels: {} })],
    ["stopPod", (p) => p.stopPod("m", { signal, graceSeconds: 1 })],
    ["deletePod", (p) => p.deletePod("m", { signal, force: true })],
    ["updatePod", (p) => p.updatePod!("m", {}, { signal })],
    ["getCapacity", (p) => p.getCapacity!({ signal })],
    ["getStats", (p) => p.getStats!({ signal, labels: {} })],
  ])("is unavailable after a minute: %s", async (method, call) => {
    const hanging = vi.fn<(...args: unknown[]) => Promise<never>>(never);
    const { clock, metrics, provider } = setup({ [method]: hanging });
    const seen = watch(call(provider));
    await clock.advance(59_000);
    const { signal: passed } = hanging.mock.calls[0]!.at(-1) as CallOptions;
    expect([seen, passed.aborted]).toEqual([{}, false]);
    await clock.advance(1_000);
    expect(seen.error).toMatchObject({
      code: "unavailable",
      message: expect.stringContaining(`${method} within 60 s`),
    });
    expect(passed.aborted).toBe(true);
    expect(await metrics.render()).toMatch(/^vmlet_backend_requests_total\{op="\w+",code="unavailable"\} 1$/m);
    expect(await metrics.render()).toContain("vmlet_backend_inflight 0\n");
  });

  test("makes no second machine when it is asked again and both are carried out late", async () => {
    const memory = new MemoryProvider();
    const gate = Promise.withResolvers<void>();
    const { clock, provider } = setup({
      createPod: (...args) => gate.promise.then(() => memory.createPod(...args)),
      getPods: (options) => memory.getPods(options),
    });
    const first = watch(provider.createPod("m", spec, { signal }));
    await clock.advance(60_000);
    const second = watch(provider.createPod("m", spec, { signal }));
    gate.resolve();
    await settle();
    expect(first.error?.code).toBe("unavailable");
    expect(second.value).toMatchObject({ id: "m" });
    expect((await provider.getPods({ signal, labels: {} })).items).toHaveLength(1);
    await memory.close();
  });
});

test("the caller's abort reaches the provider, and no timer is left of a call that is over", async () => {
  const abort = new AbortController();
  const { clock, provider } = setup({
    getInfo: ({ signal }) =>
      new Promise((_resolve, reject) => signal.addEventListener("abort", () => reject(signal.reason as Error))),
  });
  const seen = watch(provider.getInfo({ signal: abort.signal }));
  abort.abort(new Error("enough"));
  await settle();
  expect(seen.error?.message).toBe("enough");
  expect(clock.pending).toBe(0);
});

test("a session may be as long in the making as its caller waits for it", async () => {
  const { clock, provider } = setup({ exec: never });
  const seen = watch(
    provider.exec!("m", "c", ["sh"], { signal, stdin: false, stdout: true, stderr: true, tty: false }),
  );
  await clock.advance(600_000);
  expect(seen).toEqual({});
});
