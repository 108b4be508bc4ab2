import { expect, test } from "vitest";
import { podBandwidth } from "../../../src/podspec/bandwidth.ts";
import { podWith } from "./fixtures.ts";

const limited = (ingress?: string, egress?: string) =>
  podBandwidth({
    ...podWith({}),
    metadata: {
      ...podWith({}).metadata,
      annotations: {
        ...(ingress === undefined ? {} : { "kubernetes.io/ingress-bandwidth": ingress }),
        ...(egress === undefined ? {} : { "kubernetes.io/egress-bandwidth": egress }),
      },
    },
  });

test("a pod without the annotations has no limits", () => {
  expect(limited()).toEqual({ ok: true, bandwidth: undefined });
});

test("each annotation is a quantity of bits in a second", () => {
  expect(limited("10M", "1Gi")).toEqual({
    ok: true,
    bandwidth: { ingress_bits_per_second: 10_000_000, egress_bits_per_second: 2 ** 30 },
  });
  expect(limited(undefined, "1k")).toEqual({ ok: true, bandwidth: { egress_bits_per_second: 1000 } });
});

test.each([
  ["999", "annotation kubernetes.io/ingress-bandwidth: resource is unreasonably small (< 1kbit)"],
  ["-1M", "annotation kubernetes.io/ingress-bandwidth: resource is unreasonably small (< 1kbit)"],
  ["1.1P", "annotation kubernetes.io/ingress-bandwidth: resource is unreasonably large (> 1Pbit)"],
  ["fast", 'annotation kubernetes.io/ingress-bandwidth: "fast" is no quantity'],
])("%s is refused, as CNI's runtimes do", (text, message) => {
  expect(limited(text)).toEqual({ ok: false, message });
});
