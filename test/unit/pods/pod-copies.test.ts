import { describe, expect, test } from "vitest";
import type { Pod } from "../../../src/kube/wire.ts";
import { PodCopies } from "../../../src/pods/pod-copies.ts";
import { PodRecords } from "../../../src/pods/pod-record.ts";
import { pod as basePod } from "../../support/builders.ts";

const podOf = (resourceVersion: string, status: Pod["status"] = {}): Pod =>
  basePod({ metadata: { uid: "u", name: "web", resourceVersion }, status });
const running = { phase: "Running", podIPs: [{ ip: "10.0.0.1" }] };

/** The cache has version 1, and a reply has told of version 2. */
function setup() {
  let cached = podOf("1");
  const copies = new PodCopies({ synced: true, get: () => cached }, new PodRecords(() => undefined));
  copies.learn("u", podOf("2", running), "1");
  /** The cache gets this copy. */
  const get = (pod: Pod) => {
    cached = pod;
    return copies.caughtUp(pod);
  };
  return { copies, get };
}

describe("what the cache gets", () => {
  test("is no news when a reply has said the same", () => {
    const { copies, get } = setup();
    const pod = podOf("2", { ...running, message: "" });
    expect(get(pod)).toBe(true);
    expect(copies.desired("u")).toEqual({ kind: "pod", pod });
  });

  test("is news when the server has made something else of what it was told", () => {
    const { copies, get } = setup();
    const pod = podOf("2", { phase: "Running" });
    expect(get(pod)).toBe(false);
    expect(copies.desired("u")).toEqual({ kind: "pod", pod });
  });

  test("is news when it is of another version, be it an older one", () => {
    const { copies, get } = setup();
    expect(get(podOf("3", running))).toBe(false);
    expect(get(podOf("1", running))).toBe(false);
    expect(copies.desired("u")).toEqual({ kind: "pod", pod: podOf("2", running) });
  });

  test("is compared once: when it comes again, it is news", () => {
    const { get } = setup();
    get(podOf("2", running));
    expect(get(podOf("2", running))).toBe(false);
  });
});
