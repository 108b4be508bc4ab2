import { describe, expect, test } from "vitest";
import { BackendInfo } from "../../../src/agent/backend-info.ts";
import type { Capability } from "../../../src/provider/capabilities.ts";
import { ProviderError } from "../../../src/provider/errors.ts";

const config = { provider: { type: "http-vm" }, agentProbes: true } as ConstructorParameters<typeof BackendInfo>[0];
const answer = (capabilities: Capability[] = []) => ({ name: "Cloud", version: "2.0", capabilities, os: "linux" });

describe("a backend that has not answered yet", () => {
  test("has the name of the configuration, and no version or capabilities", () => {
    expect(new BackendInfo(config, "x64").forNode()).toEqual({
      runtime: { name: "http-vm", version: undefined },
      capabilities: undefined,
      platform: { os: "linux", architecture: "amd64", assumed: true },
    });
  });

  test("renders no pod", () => {
    expect(() => new BackendInfo(config, "x64").forPods()).toThrow(ProviderError);
  });

  test("is not known to lack a capability", () => {
    expect(new BackendInfo(config, "x64").can("capacity")).toBeUndefined();
  });

  test("is waited for until it does", async () => {
    const backend = new BackendInfo(config, "x64");
    const known = backend.known(new AbortController().signal);
    backend.tell(answer());
    await known;
  });

  test("is not waited for when the signal aborts", async () => {
    await new BackendInfo(config, "x64").known(AbortSignal.abort());
  });
});

describe("a backend that has answered", () => {
  test("is what it said last, which may be another thing than before", () => {
    const backend = new BackendInfo(config, "x64");
    backend.tell(answer(["events"]));
    backend.tell({ ...answer(["capacity"]), version: "3.0", architecture: "arm64" });
    expect(backend.forNode()).toEqual({
      runtime: { name: "Cloud", version: "3.0" },
      capabilities: ["capacity"],
      platform: { os: "linux", architecture: "arm64", assumed: false },
    });
    expect([backend.can("events"), backend.can("capacity")]).toEqual([false, true]);
    expect([...backend.forPods().capabilities]).toEqual(["capacity"]);
  });

  test.each<[boolean, Capability[], boolean]>([
    [true, [], true],
    [true, ["probes"], false],
    [false, [], false],
  ])(
    "leaves probes to an agent that may run them (%s) if it cannot (%j): %s",
    (agentProbes, capabilities, expected) => {
      const backend = new BackendInfo({ ...config, agentProbes }, "x64");
      backend.tell(answer(capabilities));
      expect(backend.leavesProbes).toBe(expected);
    },
  );
});
