/** What a runtime is told of a machine's size, before it is made and when it changes. */
import { Code, ConnectError } from "@connectrpc/connect";
import { describe, expect, test } from "vitest";
import { sandboxResources } from "../../../providers/local/engines/cri/container-config.ts";
import { resizeContainer } from "../../../providers/local/engines/cri/resize.ts";
import type { ContainerSpec, MachineSpec } from "../../../src/provider/machine.ts";

const container = (name: string, cpu: number, memory: number): ContainerSpec => ({
  name,
  image: "i",
  resources: { limits: { cpu_millis: cpu, memory_bytes: memory } },
});
const machine: MachineSpec = {
  labels: {},
  restart_policy: "never",
  containers: [container("a", 100, 64), container("b", 200, 36)],
  init_containers: [container("first", 4000, 4000), { ...container("beside", 50, 10), restart_policy: "always" }],
};

describe("a sandbox is sized", () => {
  test("by all containers that run at the same time", () => {
    expect(sandboxResources(machine, 1)).toMatchObject({
      cpuQuota: 35_000n,
      cpuPeriod: 100_000n,
      cpuShares: 358n,
      memoryLimitInBytes: 110n,
    });
  });

  test("by what one of them is to have from now on", () => {
    const resources = { limits: { cpu_millis: 300, memory_bytes: 164 } };
    expect(sandboxResources(machine, 1, { name: "a", resources })).toMatchObject({
      cpuQuota: 55_000n,
      memoryLimitInBytes: 210n,
    });
  });

  test("by the machine's own limit where a container has none", () => {
    const spec = { ...machine, containers: [{ name: "a", image: "i" }], resources: { limits: { memory_bytes: 500 } } };
    expect(sandboxResources(spec, 1)).toMatchObject({ cpuQuota: 0n, memoryLimitInBytes: 500n });
  });
});

describe("a container that runs gets other limits", () => {
  const host = { machine, cgroupVersion: 1, memoryBytes: 1 << 30 } as const;
  const resources = { limits: { memory_bytes: 164 } };

  async function resize(sandbox: () => Promise<object>) {
    const calls: [string, unknown][] = [];
    const runtime = {
      updatePodSandboxResources: (asked: unknown) => (calls.push(["sandbox", asked]), sandbox()),
      updateContainerResources: (asked: unknown) => (calls.push(["container", asked]), Promise.resolve({})),
    };
    const client = { runtime, within: () => ({}) } as never;
    const asked = { podSandboxId: "s", containerId: "c", name: "a", resources };
    const failed = await resizeContainer(client, asked, { host, signal: AbortSignal.abort() }).catch(
      (thrown: unknown) => thrown,
    );
    return { calls, failed };
  }

  test("after its sandbox, which is told of limits that are no more", async () => {
    const { calls } = await resize(() => Promise.resolve({}));
    expect(calls).toMatchObject([
      ["sandbox", { podSandboxId: "s", resources: { memoryLimitInBytes: 210n, cpuQuota: -1n } }],
      ["container", { containerId: "c", linux: { memoryLimitInBytes: 164n, cpuQuota: -1n } }],
    ]);
  });

  test.each([
    ["has no such call", new ConnectError("unknown method", Code.Unimplemented)],
    ["has not implemented it, as containerd 2.2", new ConnectError("not implemented yet", Code.Unknown)],
  ])("by a runtime that %s", async (_, refusal) => {
    const { calls, failed } = await resize(() => Promise.reject(refusal));
    expect(calls.map(([what]) => what)).toEqual(["sandbox", "container"]);
    expect(failed).toBeUndefined();
  });

  test("not by a runtime that cannot make its sandbox large enough", async () => {
    const { calls, failed } = await resize(() => Promise.reject(new ConnectError("no room in the VM", Code.Unknown)));
    expect(calls.map(([what]) => what)).toEqual(["sandbox"]);
    expect(failed).toMatchObject({ code: "unavailable", message: expect.stringContaining("no room in the VM") });
  });
});
