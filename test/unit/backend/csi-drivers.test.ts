/** Node plugins of CSI drivers: who is taken, and what of their word is told; the plugins do what the test says. */
import { describe, expect, test } from "vitest";
import { CsiManager } from "../../../providers/local/plugins/csi-manager.ts";
import type { CsiPlugin } from "../../../providers/local/plugins/csi-plugin.ts";
import { assertCsiPlugin } from "../../../providers/local/plugins/judge-csi.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { World } from "./world.ts";

type Info = Awaited<ReturnType<CsiPlugin["info"]>>;

const info = (more: Partial<Info> & { segments?: Record<string, string> } = {}): Info => {
  const { segments, ...others } = more;
  const accessibleTopology = segments && ({ segments } as Info["accessibleTopology"]);
  return { nodeId: "host-1", maxVolumesPerNode: 0n, ...(accessibleTopology && { accessibleTopology }), ...others };
};

const unasked = () => Promise.reject(new Error("it is asked for no volume here"));
const UNASKED = {
  ...{ capabilities: unasked, publish: unasked, unpublish: unasked },
  ...{ stage: unasked, unstage: unasked, expand: unasked, stats: unasked },
};

function setup(answers: (Info | Error | Promise<Info>)[] = [info()]) {
  const closed: string[] = [];
  const manager = new CsiManager({
    logger: silentLogger,
    connect: (socket) => ({
      async info(signal) {
        const answer = answers.shift() ?? info();
        if (answer instanceof Error) throw answer;
        const ended = Promise.withResolvers<never>();
        ended.promise.catch(() => {});
        signal.addEventListener("abort", () => ended.reject(signal.reason));
        return await Promise.race([answer, ended.promise]);
      },
      ...UNASKED,
      close: () => void closed.push(socket),
    }),
  });
  return { manager, closed };
}

describe("a CSI driver's node plugin", () => {
  test("is told with what it says of this host", async () => {
    const { manager } = setup([info({ maxVolumesPerNode: 8n, segments: { "example.com/rack": "r1" } })]);
    await manager.register("csi.example.com", "/a.sock");
    expect(manager.drivers()).toEqual([
      { name: "csi.example.com", node_id: "host-1", topology: { "example.com/rack": "r1" }, max_volumes: 8 },
    ]);
  });

  test("is not told before it has answered, and goes when its socket does", async () => {
    const answer = Promise.withResolvers<Info>();
    const { manager, closed } = setup([answer.promise]);
    const registering = manager.register("csi.example.com", "/a.sock");
    expect(manager.drivers()).toEqual([]);
    answer.resolve(info());
    const forget = await registering;
    expect(manager.drivers()).toHaveLength(1);
    forget();
    expect([manager.drivers(), closed]).toEqual([[], ["/a.sock"]]);
  });

  test("that fails is told so, and may register again elsewhere", async () => {
    const { manager } = setup([new Error("no such host"), info()]);
    await expect(manager.register("csi.example.com", "/a.sock")).rejects.toThrow("no such host");
    await manager.register("csi.example.com", "/b.sock");
    expect(manager.drivers()).toHaveLength(1);
  });

  test("that was killed is replaced by the one at its socket, which the old one's end does not take away", async () => {
    const { manager, closed } = setup([info(), info({ nodeId: "host-2" })]);
    const forget = await manager.register("csi.example.com", "/a.sock");
    await manager.register("csi.example.com", "/a.sock");
    forget();
    expect([manager.drivers(), closed]).toEqual([
      [{ name: "csi.example.com", node_id: "host-2" }],
      ["/a.sock", "/a.sock"],
    ]);
  });

  test("of a name that another one has is refused", async () => {
    const { manager } = setup();
    await manager.register("csi.example.com", "/a.sock");
    await expect(manager.register("csi.example.com", "/b.sock")).rejects.toThrow(
      "Another driver with the same name is already registered at /a.sock",
    );
  });

  test("that never answers keeps no other waiting, and is given up when the backend ends", async () => {
    const { manager } = setup([new Promise<Info>(() => {}), info()]);
    const waiting = manager.register("silent.example.com", "/a.sock");
    await manager.register("csi.example.com", "/b.sock");
    expect(manager.drivers()).toHaveLength(1);
    manager.close();
    await expect(waiting).rejects.toThrow("the backend is stopping");
  });

  test.each([
    [info({ nodeId: "" }), "driverNodeID must not be empty"],
    [info({ nodeId: "x".repeat(257) }), "the node id has control characters, or above 256"],
    [info({ nodeId: "a\nb" }), "the node id has control characters, or above 256"],
    [info({ segments: { "a b": "c" } }), '"a b=c" is no label'],
    [info({ segments: { rack: "-" } }), '"rack=-" is no label'],
    [
      info({ segments: Object.fromEntries(Array.from({ length: 33 }, (_, at) => [`k${at}`, "v"])) }),
      "33 topology segments, above 32",
    ],
  ])("that says what the cluster would refuse is not taken: %#", async (answer, told) => {
    const { manager } = setup([answer]);
    await expect(manager.register("csi.example.com", "/a.sock")).rejects.toThrow(told);
    expect(manager.drivers()).toEqual([]);
  });

  test.each([
    [-5n, undefined],
    [0n, undefined],
    [2n ** 62n, 2 ** 31 - 1],
  ])("that may have %s volumes is told with %s", async (maxVolumesPerNode, told) => {
    const { manager } = setup([info({ maxVolumesPerNode })]);
    await manager.register("csi.example.com", "/a.sock");
    expect(manager.drivers()[0]?.max_volumes).toBe(told);
  });

  test.each([
    ["csi.example.com", "/a.sock", ["1.0.0"], undefined],
    ["Csi.Example.Com", "/a.sock", ["0.3.0", "v1.2"], undefined],
    ["csi.example.com", "/a.sock", [], "Plugin returned an empty list for supported versions"],
    ["csi.example.com", "/a.sock", ["0.3.0", "2.0.0"], "None of the versions specified"],
    ["../x", "/a.sock", ["1.0.0"], '"../x" is no name of a CSI driver'],
    ["volumes.vmlet.dev", "/a.sock", ["1.0.0"], "is a name of vmlet's own"],
    ["csi.example.com", "a.sock", ["1.0.0"], "the endpoint is no absolute path of a socket"],
    ["csi.example.com", "/x/../a.sock", ["1.0.0"], "the endpoint is no absolute path of a socket"],
  ])("%s at %s with versions %j", (name, endpoint, versions, refused) => {
    const attempt = () => assertCsiPlugin(name, endpoint, versions);
    if (refused === undefined) expect(attempt).not.toThrow();
    else expect(attempt).toThrow(refused);
  });

  test("is one of 64 at most", async () => {
    const { manager } = setup([]);
    for (let at = 0; at < 64; at++) await manager.register(`d${at}.example.com`, `/${at}.sock`);
    await expect(manager.register("more.example.com", "/more.sock")).rejects.toThrow(
      "there are 64 CSI drivers already",
    );
  });
});

test("the capacity of the backend's host tells of them", async () => {
  const world = await World.create((made) => {
    made.capacity = { allocatable: { cpu_millis: 1000 } };
    made.plugins = { connectCsi: () => ({ ...UNASKED, info: () => Promise.resolve(info()), close() {} }) };
  });
  const told = async () => (await world.provider.getCapacity({ signal: world.signal })).csi_drivers;
  expect(await told()).toBeUndefined();
  await world.csi.register("csi.example.com", "/a.sock");
  expect(await told()).toEqual([{ name: "csi.example.com", node_id: "host-1" }]);
});
