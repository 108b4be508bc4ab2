/** What is told of the cluster's network plugins by containerd's verbose status (`cniconfig`). */
import { describe, expect, test } from "vitest";
import { pluginsLimitBandwidth } from "../../../providers/local/engines/cri/network-plugins.ts";

const told = (...networks: object[][]) =>
  JSON.stringify({ Networks: networks.map((Plugins) => ({ Config: { Plugins } })) });
const plugin = (type: string, capabilities?: object) => ({ Network: { type, ...(capabilities && { capabilities }) } });

describe("network plugins limit a machine's traffic", () => {
  test("when one of a network's says that it takes a bandwidth", () => {
    expect(pluginsLimitBandwidth(told([plugin("bridge"), plugin("bandwidth", { bandwidth: true })]))).toBe(true);
  });

  test("when only the second network's does", () => {
    expect(pluginsLimitBandwidth(told([plugin("loopback")], [plugin("calico", { bandwidth: true })]))).toBe(true);
  });

  test.each([
    ["none says so", told([plugin("bridge"), plugin("portmap", { portMappings: true })])],
    ["it is denied", told([plugin("bandwidth", { bandwidth: false })])],
    ["there is no network yet", told()],
    ["nothing was read", "null"],
    ["the runtime does not tell", undefined],
  ])("not when %s", (_, config) => {
    expect(pluginsLimitBandwidth(config)).toBe(false);
  });
});
