import { expect, test } from "vitest";
import type { KubeRequest } from "../../../src/kube/kube.ts";
import { ResourceSlices } from "../../../src/node/resource-slices.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { apiError, ScriptedKube } from "../../support/scripted-kube.ts";
import { VirtualClock } from "../../support/virtual-clock.ts";

const { signal } = new AbortController();

/** An API server with slices of this node by these drivers. */
function setup(...drivers: string[]) {
  const kube = new ScriptedKube();
  const clock = new VirtualClock();
  const api = { drivers, fault: undefined as Error | undefined, faultOf: undefined as string | undefined };
  const asked: string[] = [];
  kube.answer = ({ method, path, query = {}, metadataOnly }: KubeRequest) => {
    expect(path).toBe("/apis/resource.k8s.io/v1/resourceslices");
    asked.push(`${method} ${query["fieldSelector"]}`);
    if (api.fault) throw api.fault;
    if (method === "GET") return { items: api.drivers.map((driver) => ({ spec: { driver } })) };
    // Otherwise an API server removes them, and answers that it cannot say so.
    expect(metadataOnly).toBe("list");
    const driver = /spec\.driver=(.*)$/.exec(String(query["fieldSelector"]))![1];
    if (driver === api.faultOf) throw apiError(500, "InternalError");
    api.drivers = api.drivers.filter((each) => each !== driver);
    return {};
  };
  const open = () => new ResourceSlices({ node: "burst-1", kube, clock, logger: silentLogger });
  const slices = open();
  const clean = async (registered: string[] | undefined, afterMs = 0) => {
    await clock.advance(afterMs);
    await slices.clean(registered, signal);
    return api.drivers;
  };
  return { api, asked, clean, open, clock };
}

test("a driver's slices of this node go with it half a minute later, and no other's", async () => {
  const { clean, asked } = setup("gpu.example.com", "nic.example.com");
  await clean(["gpu.example.com", "nic.example.com"]);
  await clean(["nic.example.com"], 10_000);
  expect(await clean(["nic.example.com"], 29_000)).toEqual(["gpu.example.com", "nic.example.com"]);
  expect(await clean(["nic.example.com"], 1_000)).toEqual(["nic.example.com"]);
  expect(asked).toEqual(["GET spec.nodeName=burst-1", "DELETE spec.nodeName=burst-1,spec.driver=gpu.example.com"]);
});

test("a driver that is back in time keeps its slices, however often it goes", async () => {
  const { clean } = setup("gpu.example.com");
  for (let turn = 0; turn < 3; turn++) {
    await clean(["gpu.example.com"], 20_000);
    await clean([], 20_000);
  }
  expect(await clean(["gpu.example.com"], 20_000)).toEqual(["gpu.example.com"]);
});

test("what a driver left that went while nobody looked is removed, too", async () => {
  const { clean } = setup("gpu.example.com");
  await clean([]);
  expect(await clean([], 30_000)).toEqual([]);
});

test("while it is not known which drivers there are, nothing is asked or removed", async () => {
  const { clean, asked } = setup("gpu.example.com");
  await clean(undefined);
  await clean(undefined, 60_000);
  expect(asked).toEqual([]);
  await clean(["gpu.example.com"]);
  await clean(undefined, 60_000);
  expect(await clean(["gpu.example.com"])).toEqual(["gpu.example.com"]);
});

test("a driver whose slices cannot be removed keeps no other's from it", async () => {
  const { api, clean } = setup("broken.example.com", "gpu.example.com");
  api.faultOf = "broken.example.com";
  await clean([]);
  await clean([], 30_000);
  expect(await clean([], 1_000)).toEqual(["broken.example.com"]);
  api.faultOf = undefined;
  expect(await clean([], 1_000)).toEqual([]);
});

test("a node with its drivers asks for nothing", async () => {
  const { clean, asked } = setup("gpu.example.com");
  for (let turn = 0; turn < 10; turn++) await clean(["gpu.example.com"], 10_000);
  expect(asked).toHaveLength(1);
});

test("what fails is tried again, and what is forbidden or not there is left", async () => {
  const { api, clean } = setup("gpu.example.com");
  api.fault = apiError(503, "ServiceUnavailable");
  await clean([]);
  api.fault = undefined;
  await clean([], 1_000);
  api.fault = apiError(503, "ServiceUnavailable");
  await clean([], 30_000);
  api.fault = undefined;
  expect(await clean([], 1_000)).toEqual([]);
  for (const [status, reason] of [[403, "Forbidden"] as const, [404, "NotFound"] as const]) {
    const other = setup("gpu.example.com");
    other.api.fault = apiError(status, reason);
    for (let turn = 0; turn < 6; turn++) await other.clean([], 10_000);
    expect(other.asked).toHaveLength(1);
  }
});
