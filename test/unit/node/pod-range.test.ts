import { afterEach, beforeEach, describe, expect, test } from "vitest";
import type { Node } from "../../../src/kube/wire.ts";
import { PodRange } from "../../../src/node/pod-range.ts";
import { ProviderError } from "../../../src/provider/errors.ts";
import { ownerLabels } from "../../../src/provider/owner.ts";
import { PodRangeBook, type PodRangesProvider } from "../../../src/provider/pod-ranges.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { settle, VirtualClock } from "../../support/virtual-clock.ts";

const OWN = ownerLabels("c1", "burst-0");
const signal = new AbortController().signal;

describe("a Node's podCIDR, for a backend that takes it", () => {
  let clock: VirtualClock;
  let node: Node | undefined;
  let warned: string[];
  let changes: number;
  let book: PodRangeBook;
  let calls: Partial<PodRangesProvider>;
  let range: PodRange;
  let done: AbortController;

  beforeEach(() => {
    clock = new VirtualClock();
    node = { spec: { podCIDR: "10.244.1.0/24", podCIDRs: ["10.244.1.0/24", "fd00::/64"] } };
    [warned, changes, calls] = [[], 0, {}];
    book = new PodRangeBook({ within: ["10.244.0.0/16"] });
    done = new AbortController();
    const call: PodRangesProvider = {
      put: (spec, options) => (calls.put ?? book.put.bind(book))(spec, options),
      get: (options) => book.get(options),
      delete: (options) => (calls.delete ?? book.delete.bind(book))(options),
    };
    range = new PodRange({
      provider: { podRanges: call },
      ...{ clusterId: "c1", nodeName: "burst-0", node: () => node, clock, random: () => 0, logger: silentLogger },
      warn: (_reason, message) => void warned.push(message),
      onChange: () => changes++,
    });
  });
  afterEach(() => done.abort());

  const run = async () => {
    void range.run(done.signal);
    await settle();
  };
  const later = async (ms: number) => {
    await clock.advance(ms);
    await settle();
  };

  test("is told, and the Node says what is in use of it", async () => {
    await run();
    expect(book.kept).toEqual({ labels: OWN, range: "10.244.1.0/24" });
    expect(range.condition).toMatchObject({
      ...{ type: "PodRangeReady", status: "True", reason: "PodCIDRInUse" },
      message: "machines get addresses of 10.244.1.0/24; not of fd00::/64, whose family they have not",
    });
    expect([warned, changes]).toEqual([[], 1]);
  });

  test("is told as soon as the cluster has given it", async () => {
    node = { spec: {} };
    await run();
    expect(range.condition).toMatchObject({ status: "False", reason: "NoPodCIDR" });
    expect(warned[0]).toContain("--allocate-node-cidrs");
    node = { spec: { podCIDR: "10.244.1.0/24" } };
    range.nodeChanged();
    await settle();
    expect(range.condition).toMatchObject({ status: "True" });
  });

  test("is told again to a backend that has lost it", async () => {
    await run();
    await book.delete({ labels: OWN, signal });
    await later(60_000);
    expect(book.kept?.range).toBe("10.244.1.0/24");
  });

  test("is not told for a Node that is not there", async () => {
    node = undefined;
    await run();
    expect([book.kept, range.condition]).toEqual([undefined, undefined]);
  });

  test("that is refused is said on the Node and by one event, until it is taken", async () => {
    const other = ownerLabels("c1", "burst-1");
    await book.put({ labels: other, ranges: ["10.244.9.0/24"] }, { signal });
    await run();
    await later(5_000);
    expect(range.condition).toMatchObject({ status: "False", reason: "PodRangeRefused" });
    expect(warned).toHaveLength(1);
    expect(warned[0]).toContain("those of node burst-1 of cluster");
    await book.delete({ labels: other, signal });
    await later(60_000);
    expect(range.condition).toMatchObject({ status: "True" });
  });

  test("that waits for machines is said so, and asked for until it is in use", async () => {
    let message: string | undefined = "machines still have addresses of 10.99.0.0/16";
    book = new PodRangeBook({ within: ["10.244.0.0/16"], use: () => Promise.resolve(message) });
    await run();
    expect(range.condition).toMatchObject({ status: "False", reason: "PodRangeWaits", message });
    message = undefined;
    await later(5_000);
    expect(range.condition).toMatchObject({ status: "True" });
  });

  test("stays in use while the backend does not answer", async () => {
    await run();
    calls.put = () => Promise.reject(new ProviderError("unavailable", "no answer"));
    await later(120_000);
    expect(range.condition).toMatchObject({ status: "True" });
  });

  test("is given back when the node is served no longer, and not told after that", async () => {
    await run();
    calls.delete = () => Promise.reject(new ProviderError("unavailable", "no answer"));
    expect(await range.release(signal)).toBe(false);
    delete calls.delete;
    expect(await range.release(signal)).toBe(true);
    await later(120_000);
    expect(book.kept).toBeUndefined();
  });

  test("is told again when the node is put back before it could be given back", async () => {
    node = { metadata: { uid: "first" }, spec: { podCIDR: "10.244.1.0/24" } };
    await run();
    node = undefined;
    range.nodeChanged();
    calls.delete = () => Promise.reject(new ProviderError("unavailable", "the backend is down"));
    expect(await range.release(signal)).toBe(false);
    node = { metadata: { uid: "second" }, spec: { podCIDR: "10.244.2.0/24" } };
    range.nodeChanged();
    await settle();
    expect(book.kept?.range).toBe("10.244.2.0/24");
    expect(range.condition?.message).toContain("10.244.2.0/24");
  });

  test("is given back after what is being told has been told", async () => {
    const told = Promise.withResolvers<void>();
    calls.put = async (spec, options) => {
      await told.promise;
      return await book.put(spec, options);
    };
    await run();
    const released = range.release(signal);
    await settle();
    told.resolve();
    expect(await released).toBe(true);
    expect(book.kept).toBeUndefined();
  });

  test("that the Node's next life does not have is given back: another node may get it", async () => {
    await run();
    node = { spec: {} };
    range.nodeChanged();
    await settle();
    expect(book.kept).toBeUndefined();
    expect(range.condition).toMatchObject({ status: "False", reason: "NoPodCIDR" });
  });

  test("of another node is left alone by one that is served no longer", async () => {
    await book.put({ labels: ownerLabels("c1", "burst-1"), ranges: ["10.244.9.0/24"] }, { signal });
    expect(await range.release(signal)).toBe(true);
    expect(book.kept?.range).toBe("10.244.9.0/24");
  });
});
