import { Code, ConnectError } from "@connectrpc/connect";
import { expect, test } from "vitest";
import { ContainerState, PodSandboxState } from "../../../providers/local/engines/cri/api.gen.js";
import type { CriContext } from "../../../providers/local/engines/cri/context.ts";
import type { CriClient } from "../../../providers/local/engines/cri/client.ts";
import { removeFormer } from "../../../providers/local/engines/cri/former-containers.ts";
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
    containers: { learn: () => Promise.resolve(), learnEnds: () => Promise.resolve(), watchSandbox: () => () => {} },
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

/** Recovers a machine whose sandbox runs on a bridge of ours; what is asked of that, in order. */
async function rejoined({ isNamed, hasBegun }: { isNamed: boolean; hasBegun: boolean }) {
  const asked: string[] = [];
  const Interfaces = { eth0: { Mac: "aa:00:00:00:00:01", Sandbox: "/run/netns/n" }, vethnone0: { Sandbox: "" } };
  const runtime = {
    listPodSandbox: () => Promise.resolve({ items: [{ id: "s1", state: PodSandboxState.SANDBOX_READY }] }),
    podSandboxStatus: () =>
      Promise.resolve({
        status: { network: { ip: "10.0.0.2" } },
        info: { info: JSON.stringify({ cniResult: { Interfaces } }) },
      }),
  };
  const network = {
    find: () => Promise.resolve(isNamed ? {} : undefined),
    ensure: async () => void asked.push("ensure"),
    addressesOf: (address: string) => [address],
    adopt: async (_id: string, made: object) => void asked.push(`adopt ${JSON.stringify(made)}`),
    limits: { hold: async () => void asked.push("limits") },
    openHostPorts: async () => void asked.push("openHostPorts"),
  };
  const context = {
    clock: systemClock,
    logger: silentLogger,
    client: { runtime, within: () => ({}) },
    containers: {
      learn: () => Promise.resolve(hasBegun),
      learnEnds: () => Promise.resolve(),
      watchSandbox: () => () => {},
    },
    network,
    backend: "b",
  } as unknown as CriContext;
  const sandbox = await recoverSandbox(context, { id: "m1", spec: { labels: {}, containers: [] } } as never);
  return { sandbox, asked };
}

test("what a kill has cut off of a machine's rules is done before its sandbox is found", async () => {
  const { sandbox, asked } = await rejoined({ isNamed: true, hasBegun: false });
  expect(sandbox?.addresses).toEqual(["10.0.0.2"]);
  expect(asked).toEqual([
    `adopt ${JSON.stringify({ address: "10.0.0.2", link: "vethnone0", mac: "aa:00:00:00:00:01" })}`,
    "limits",
    "openHostPorts",
  ]);
});

test("a machine in which something has begun keeps the rules that it has", async () => {
  expect((await rejoined({ isNamed: true, hasBegun: true })).asked).toEqual(["ensure", "limits", "openHostPorts"]);
});

test("a sandbox whose interface is gone is gone", async () => {
  expect(await rejoined({ isNamed: false, hasBegun: false })).toEqual({ sandbox: undefined, asked: [] });
});

test("before an instance is made goes what has ended, and what a runtime that was killed has half made of its attempt", async () => {
  const made = (id: string, state: ContainerState, attempt: number) => ({
    ...{ id, state, metadata: { name: "c", attempt } },
  });
  const containers = [
    made("ended", ContainerState.CONTAINER_EXITED, 0),
    made("runs", ContainerState.CONTAINER_RUNNING, 1),
    made("cut off", ContainerState.CONTAINER_CREATED, 2),
    made("made for another attempt", ContainerState.CONTAINER_CREATED, 3),
    made("half made, by this try or one before it", ContainerState.CONTAINER_UNKNOWN, 2),
    // It may have run: its end is to be told first.
    made("nobody knows", ContainerState.CONTAINER_UNKNOWN, 1),
  ];
  const removed: string[] = [];
  const runtime = {
    listContainers: () => Promise.resolve({ containers }),
    removeContainer: ({ containerId }: { containerId: string }) => Promise.resolve(void removed.push(containerId)),
  };
  const client = { runtime, within: () => ({}) } as unknown as CriClient;
  await removeFormer(client, {}, { attempt: 2 }, {});
  expect(removed).toEqual(["ended", "cut off", "half made, by this try or one before it"]);
});
