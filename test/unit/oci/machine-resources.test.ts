import { describe, expect, test } from "vitest";
import { oomScoreAdj, sharedLimits } from "../../../providers/local/bundle/machine-resources.ts";
import type { ContainerResources, MachineSpec } from "../../../src/provider/machine.ts";
import { containerSpec, machineSpec } from "../../support/builders.ts";

const MIB = 1 << 20;
const GIB = 1024 * MIB;

const container = (name: string, resources?: ContainerResources) =>
  containerSpec({ name, ...(resources && { resources }) });
const machine = (more: Partial<MachineSpec>) => machineSpec({ containers: [container("a")], ...more });
const limits = (memory_bytes: number, cpu_millis = 1000) => ({ limits: { cpu_millis, memory_bytes } });

describe("limits of a machine as a whole", () => {
  test("a container without one makes the machine's limit needed", () =>
    expect(sharedLimits(machine({ resources: limits(GIB, 500) }))).toEqual({ cpu_millis: 500, memory_bytes: GIB }));
  test("containers that together keep it do without, so that each can grow", () =>
    expect(
      sharedLimits(
        machine({
          containers: [container("a", limits(GIB)), container("b", limits(GIB))],
          init_containers: [container("i", limits(2 * GIB))],
          resources: limits(2 * GIB, 2000),
        }),
      ),
    ).toEqual({}));
  test("containers whose limits are more together are held to the machine's", () =>
    expect(
      sharedLimits(
        machine({
          containers: [container("a", limits(GIB)), container("b", limits(GIB))],
          resources: limits(GIB, 2000),
        }),
      ),
    ).toEqual({ memory_bytes: GIB }));
  test("no limit, none", () =>
    expect(sharedLimits(machine({ resources: { requests: { memory_bytes: GIB } } }))).toEqual({}));
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
