/** What exporters of metrics and meta-plugins of networks are told of pods' devices. */
import { createClient, createRouterTransport } from "@connectrpc/connect";
import { describe, expect, test } from "vitest";
import type { PreparedClaims } from "../../../providers/local/claims.ts";
import type { HeldDevices } from "../../../providers/local/devices.ts";
import { PodResourcesLister } from "../../../providers/local/plugins/api/pod-resources/api.gen.js";
import { podResources } from "../../../providers/local/plugins/pod-resources.ts";
import type { MachineSpec } from "../../../src/provider/machine.ts";
import { LABEL_NAMESPACE, LABEL_POD } from "../../../src/provider/owner.ts";
import { VirtualClock } from "../../support/virtual-clock.ts";

const GPU = "vendor.example/gpu";

const holding = (...devices: { id: string; numa?: number[] }[]) => ({
  resource: GPU,
  devices,
  preStart: false,
  grant: { env: {}, mounts: [], nodes: [], annotations: {}, cdi: [] },
});

function machine(pod: string, devices?: HeldDevices | "lost", isOver = false) {
  const spec: MachineSpec = {
    labels: { [LABEL_POD]: pod, [LABEL_NAMESPACE]: "ns" },
    restart_policy: "never",
    init_containers: [
      { name: "init", image: "i" },
      { name: "side", image: "i", restart_policy: "always" },
    ],
    containers: [{ name: "a", image: "i" }],
  };
  const record: { devices?: HeldDevices | "lost" | undefined; prepared?: PreparedClaims } = { devices };
  return { isOver, spec, record };
}

function lister(...machines: ReturnType<typeof machine>[]) {
  const allocatable = () => [
    { resource: GPU, id: "g0", numa: [0, 1] },
    { resource: GPU, id: "g1", numa: [] },
  ];
  const routes = podResources({ clock: new VirtualClock(), machines: () => machines, allocatable });
  return createClient(PodResourcesLister, createRouterTransport(routes));
}

describe("the pods of this host", () => {
  test("are told with the claims that their containers name", async () => {
    const pod = machine("p");
    pod.spec.containers[0]!.claims = [{ name: "gpu" }];
    const devices = [{ pool: "p", device: "d0", requests: [], cdi: ["example.com/gpu=0"] }];
    const claim = { names: ["gpu"], namespace: "ns", claim: "p-gpu", drivers: { "gpu.example.com": devices } };
    const prepared = { u1: claim, u2: { ...claim, names: ["other"] } };
    const { podResources: pods } = await lister({ ...pod, record: { ...pod.record, prepared } }).list({});
    expect(pods[0]!.containers).toMatchObject([
      { name: "side", dynamicResources: [] },
      {
        name: "a",
        dynamicResources: [
          {
            claimName: "p-gpu",
            claimNamespace: "ns",
            claimResources: [
              {
                driverName: "gpu.example.com",
                poolName: "p",
                deviceName: "d0",
                cdiDevices: [{ name: "example.com/gpu=0" }],
              },
            ],
          },
        ],
      },
    ]);
  });

  test("are told with the devices of the containers that stay", async () => {
    const held = {
      init: [holding({ id: "g0" })],
      side: [holding({ id: "g1" })],
      a: [holding({ id: "g0", numa: [1] })],
    };
    const { podResources: pods } = await lister(machine("p", held)).list({});
    expect(pods).toMatchObject([
      {
        name: "p",
        namespace: "ns",
        containers: [
          { name: "side", devices: [{ resourceName: GPU, deviceIds: ["g1"] }] },
          { name: "a", devices: [{ resourceName: GPU, deviceIds: ["g0"], topology: { nodes: [{ ID: 1n }] } }] },
        ],
      },
    ]);
  });

  test("are told while they are not over, devices or none", async () => {
    const { podResources: pods } = await lister(
      machine("over", {}, true),
      machine("none"),
      machine("lost", "lost"),
    ).list({});
    expect(pods.map(({ name, containers }) => [name, containers.map(({ devices }) => devices)])).toEqual([
      ["none", [[], []]],
      ["lost", [[], []]],
    ]);
  });

  test("are told one by one", async () => {
    const { podResources: pod } = await lister(machine("p", { a: [holding({ id: "g1" })] })).get({
      podName: "p",
      podNamespace: "ns",
    });
    expect(pod?.containers.map(({ devices }) => devices.map(({ deviceIds }) => deviceIds))).toEqual([[], [["g1"]]]);
  });

  test("that are not there are told so, in a kubelet's words", async () => {
    await expect(lister(machine("p")).get({ podName: "p", podNamespace: "other" })).rejects.toThrow(
      "pod p in namespace other not found",
    );
  });
});

test("healthy devices are allocatable, with the NUMA nodes that they are near to", async () => {
  const { devices } = await lister().getAllocatableResources({});
  expect(devices.map(({ deviceIds, topology }) => [deviceIds, topology?.nodes.map(({ ID }) => ID)])).toEqual([
    [["g0"], [0n, 1n]],
    [["g1"], undefined],
  ]);
});

test("a caller that asks without end is refused", async () => {
  const client = lister();
  for (let i = 0; i < 10; i++) await client.list({});
  await expect(client.list({})).rejects.toThrow("rejected by rate limit");
});
