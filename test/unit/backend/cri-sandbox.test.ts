import { Code, ConnectError } from "@connectrpc/connect";
import { expect, test } from "vitest";
import { PodSandboxState } from "../../../providers/local/engines/cri/api.gen.js";
import type { CriContext } from "../../../providers/local/engines/cri/context.ts";
import { recoverSandbox } from "../../../providers/local/engines/cri/sandbox.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { systemClock } from "../../../src/util/clock.ts";

/** Recovers a machine whose sandbox a runtime lists as "not ready", and says this of when it is asked. */
async function recovered(status: () => Promise<object>) {
  const state = PodSandboxState.SANDBOX_NOTREADY;
  const runtime = {
    listPodSandbox: () => Promise.resolve({ items: [{ id: "s1", state }] }),
    podSandboxStatus: async () => ({ status: { state, network: { ip: "10.0.0.2" } }, ...(await status()) }),
  };
  const context = {
    clock: systemClock,
    logger: silentLogger,
    client: { runtime, within: () => ({}) },
    containers: { learn: () => Promise.resolve(), watchSandbox: () => () => {} },
    backend: "b",
  } as unknown as CriContext;
  return await recoverSandbox(context, { id: "m1", spec: { labels: {} } } as never);
}
const says = (status: string) => () => Promise.resolve({ info: { info: JSON.stringify({ status }) } });

test("a sandbox that runs is found, though the runtime could not ask about it when it started", async () => {
  expect((await recovered(says("running")))?.addresses).toEqual(["10.0.0.2"]);
});

test.each(["stopped", "deleted", "unknown"])("a sandbox whose first process is %s is gone", async (status) => {
  expect(await recovered(says(status))).toBeUndefined();
});

test("a sandbox that the runtime cannot be asked about is not taken for gone", async () => {
  const failed = () => Promise.reject(new ConnectError("failed to get task status: timeout", Code.Unknown));
  await expect(recovered(failed)).rejects.toThrow("timeout");
});

test("a sandbox that the runtime no longer has is gone", async () => {
  expect(await recovered(() => Promise.reject(new ConnectError("none", Code.NotFound)))).toBeUndefined();
});
