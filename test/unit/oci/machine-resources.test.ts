import { describe, expect, test } from "vitest";
import { oomScoreAdj, ownLimits, resizeGroup } from "../../../providers/local/bundle/machine-resources.ts";
import { withoutSummedLimits } from "../../../providers/local/machine/spec-changes.ts";
import type { ContainerResources, MachineSpec } from "../../../src/provider/machine.ts";
import { containerSpec, machineSpec } from "../../support/builders.ts";

const MIB = 1 << 20;
const GIB = 1024 * MIB;

const container = (name: string, resources?: ContainerResources) =>
  containerSpec({ name, ...(resources && { resources }) });
const machine = (more: Partial<MachineSpec>) => machineSpec({ containers: [container("a")], ...more });
const limits = (memory_bytes: number, cpu_millis = 1000) => ({ limits: { cpu_millis, memory_bytes } });

describe("limits of a machine as a whole", () => {
  test("are those of its own resources", () =>
    expect(ownLimits(limits(GIB, 500))).toEqual({ cpu_millis: 500, memory_bytes: GIB }));
  test("no limit, none", () => expect(ownLimits({ requests: { memory_bytes: GIB } })).toEqual({}));
  test("those that were its containers' sum go when one of them changes alone, so that it can grow", () =>
    expect(
      withoutSummedLimits(
        machine({
          containers: [container("a", limits(GIB)), container("b", limits(GIB))],
          init_containers: [container("i", limits(2 * GIB))],
          resources: limits(2 * GIB, 2000),
        }),
      ),
    ).toEqual({ limits: {} }));
  test("those that are less than its containers' sum stay", () =>
    expect(
      withoutSummedLimits(
        machine({
          containers: [container("a", limits(GIB)), container("b", limits(GIB))],
          resources: limits(GIB, 2000),
        }),
      ),
    ).toEqual({ limits: { memory_bytes: GIB } }));
  test("those that a container without any has for its own stay", () =>
    expect(withoutSummedLimits(machine({ resources: limits(GIB, 500) }))).toEqual(limits(GIB, 500)));
});

describe("a machine's group changes", () => {
  const journal: unknown[] = [];
  const change = async (
    from: ContainerResources | undefined,
    to: ContainerResources,
    containers = () => Promise.resolve(void journal.push("containers")),
  ) => {
    journal.length = 0;
    const usage = () => Promise.resolve({ workingSet: 100 * MIB });
    const limit = (amounts: object) => Promise.resolve(void journal.push(amounts));
    await resizeGroup({ usage, limit }, { from, to }, containers);
    return journal;
  };
  const set = (memory_bytes: number, cpu_millis: number) => ({ cpu_millis, memory_bytes });

  test("before its containers where it grows, after them where it shrinks", async () =>
    expect(await change(limits(GIB, 500), limits(2 * GIB, 300))).toEqual([
      set(2 * GIB, 500),
      "containers",
      set(2 * GIB, 300),
    ]));
  test("from no limit to one, and back", async () => {
    expect(await change(undefined, limits(GIB, 500))).toEqual([set(Infinity, Infinity), "containers", set(GIB, 500)]);
    expect((await change(limits(GIB, 500), {}))[2]).toEqual(set(Infinity, Infinity));
  });
  test("not to less memory than it uses, in a kubelet's words", async () => {
    await expect(change(limits(GIB), limits(MIB))).rejects.toThrow(
      `attempting to set pod memory limit (${MIB}) below current usage (${100 * MIB})`,
    );
    expect(journal).toEqual([]);
  });
  test("back when a container cannot follow", async () => {
    const refuse = () => Promise.reject(new Error("no"));
    await expect(change(limits(GIB, 500), limits(2 * GIB, 300), refuse)).rejects.toThrow("no");
    expect(journal).toEqual([set(2 * GIB, 500), set(GIB, 500)]);
  });
});

describe("who goes first when memory runs out, as in a kubelet", () => {
  const score = (spec: MachineSpec, name = "a") => oomScoreAdj(name, spec, 10 * GIB);
  const asks = (memory_bytes: number): ContainerResources => ({ requests: { memory_bytes } });

  test("limits that are requests too: last", () =>
    expect(score(machine({ containers: [container("a", { ...limits(GIB), requests: limits(GIB).limits })] }))).toBe(
      -997,
    ));
  test("limits alone are requests as well", () =>
    expect(score(machine({ containers: [container("a", limits(GIB))] }))).toBe(-997));
  test("one container without them, and the machine is not among the last", () =>
    expect(score(machine({ containers: [container("a", limits(GIB)), container("b")] }))).toBe(900));
  test("nothing is asked for: first", () => expect(score(machine({}))).toBe(1000));
  test.each([
    [GIB, 900],
    [1, 999],
    [10 * GIB, 3],
    [20 * GIB, 3],
  ])("a request of %d bytes of 10 GiB: %d", (request, expected) =>
    expect(score(machine({ containers: [container("a", asks(request))] }))).toBe(expected),
  );
  test("a container that asks for nothing beside one that does", () =>
    expect(score(machine({ containers: [container("a"), container("b", asks(GIB))] }))).toBe(999));
  test("a sidecar stays as long as the main container that asks for the least", () =>
    expect(
      score(
        machine({
          containers: [container("b", asks(2 * GIB)), container("c", asks(3 * GIB))],
          init_containers: [{ ...container("a", asks(GIB)), restart_policy: "always" }],
        }),
      ),
    ).toBe(800));
  test("what the machine asks for beyond its containers is shared out", () =>
    expect(
      score(machine({ containers: [container("a", asks(GIB)), container("b", asks(GIB))], resources: asks(4 * GIB) })),
    ).toBe(800));
  test("an init container's request is not shared out", () =>
    expect(
      score(
        machine({
          containers: [container("a", asks(GIB))],
          init_containers: [container("i", asks(5 * GIB))],
          resources: asks(5 * GIB),
        }),
      ),
    ).toBe(900));
  test("a machine that guarantees as a whole what its containers leave open is among the last", () =>
    expect(score(machine({ resources: { ...limits(GIB), requests: limits(GIB).limits } }))).toBe(-997));
  test("an ephemeral container asks for nothing", () =>
    expect(
      score(
        machine({
          containers: [container("b", asks(GIB))],
          ephemeral_containers: [container("a")],
          resources: asks(GIB),
        }),
      ),
    ).toBe(999));
});
