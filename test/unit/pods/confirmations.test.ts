/** When a list stands in for the read of each pod that is about to get its machine, and when it does not. */
import { beforeEach, describe, expect, test } from "vitest";
import { KubeApiError } from "../../../src/kube/errors.ts";
import type { KubeRequest } from "../../../src/kube/kube.ts";
import type { Pod } from "../../../src/kube/wire.ts";
import { PodConfirmations, type Crowd } from "../../../src/pods/confirmations.ts";
import { pod as basePod } from "../../support/builders.ts";
import { VirtualClock } from "../../support/virtual-clock.ts";

const signal = new AbortController().signal;
const podNamed = (uid: string, resourceVersion = "1", more: object = {}): Pod =>
  basePod({ metadata: { name: uid, uid, resourceVersion, ...more } });

let clock: VirtualClock;
let crowd: Crowd;
let listed: Pod[];
let requests: KubeRequest[];
/** What becomes of a list. */
let carry: (reply: () => unknown) => Promise<unknown>;
let confirmations: PodConfirmations;

beforeEach(() => {
  clock = new VirtualClock();
  crowd = { pods: 100, waiting: 100 };
  listed = [podNamed("a"), podNamed("b")];
  requests = [];
  carry = async (reply) => reply();
  const kube = {
    request: async <T>(request: KubeRequest): Promise<T> => {
      requests.push(request);
      return (await carry(() => ({ items: listed }))) as T;
    },
    watch: () => {
      throw new Error("nothing is watched");
    },
  };
  confirmations = new PodConfirmations({ kube, nodeName: "n", clock, crowd: () => crowd });
});

const confirms = (pod: Pod) => confirmations.confirms(pod, signal);

describe("one list", () => {
  test("confirms all pods that it names in the version that is known", async () => {
    expect(await Promise.all(listed.map(confirms))).toEqual([true, true]);
    expect(requests).toHaveLength(1);
  });

  test("is of this node's pods, of their metadata, and no cache may answer it", async () => {
    await confirms(listed[0]!);
    const [{ path, query, metadataOnly }] = requests as [KubeRequest];
    expect({ path, query, metadataOnly }).toEqual({
      path: "/api/v1/pods",
      query: { fieldSelector: "spec.nodeName=n" },
      metadataOnly: true,
    });
  });

  test("confirms no pod that has changed since, that it lacks, that has another UID or that is being deleted", async () => {
    listed.push(podNamed("d", "1", { deletionTimestamp: "2026-01-01T00:00:00Z" }));
    const pods = [podNamed("a", "2"), podNamed("c"), podNamed("d")];
    expect(await Promise.all(pods.map(confirms))).toEqual([false, false, false]);
  });

  test("confirms for no more than a second after it was asked for", async () => {
    carry = async (reply) => {
      await clock.sleep(400, signal);
      return reply();
    };
    const first = confirms(listed[0]!);
    await clock.advance(400);
    expect(await first).toBe(true);
    crowd = { pods: 100, waiting: 0 };
    await clock.advance(599);
    expect(await confirms(listed[0]!)).toBe(true);
    await clock.advance(1);
    expect(await confirms(listed[0]!)).toBe(false);
    expect(requests).toHaveLength(1);
  });

  test("confirms nothing when it took longer than that, and none is asked for again for a while", async () => {
    carry = async (reply) => {
      await clock.sleep(1_100, signal);
      return reply();
    };
    const first = confirms(listed[0]!);
    await clock.advance(1_100);
    expect(await first).toBe(false);
    expect(await confirms(listed[0]!)).toBe(false);
    expect(requests).toHaveLength(1);
  });

  test("that fails confirms nothing, fails nothing, and none is asked for again for a while", async () => {
    carry = () => Promise.reject(new KubeApiError("no", { status: 500, reason: "InternalError" }));
    expect(await confirms(listed[0]!)).toBe(false);
    expect(await confirms(listed[0]!)).toBe(false);
    expect(requests).toHaveLength(1);
    carry = async (reply) => reply();
    await clock.advance(10_000);
    expect(await confirms(listed[0]!)).toBe(true);
  });
});

test.each([
  ["few pods wait", { pods: 31, waiting: 31 }],
  ["the node has many more pods than wait", { pods: 801, waiting: 100 }],
  ["the node has more pods than a second's creates pay for", { pods: 3_201, waiting: 3_201 }],
])("no list is asked for when %s", async (_when, now) => {
  crowd = now;
  expect(await confirms(listed[0]!)).toBe(false);
  expect(requests).toEqual([]);
});
