import { beforeEach, describe, expect, test } from "vitest";
import type { Pod } from "../../../src/kube/wire.ts";
import { PodClaims } from "../../../src/podspec/references/claims.ts";
import { settle, VirtualClock } from "../../support/virtual-clock.ts";
import { failure, FakeKube } from "./fake-kube.ts";
import { podWith } from "./fixtures.ts";

const { signal } = new AbortController();
const CLAIM = "/apis/resource.k8s.io/v1/namespaces/shop/resourceclaims/web-0-gpu";

const podOf = (claim: object = { resourceClaimName: "web-0-gpu" }, status: object = {}): Pod => ({
  ...podWith({ resourceClaims: [{ name: "gpu", ...claim }] }),
  status,
});
const TEMPLATE = { resourceClaimTemplateName: "gpu" };
const NAMED = { resourceClaimStatuses: [{ name: "gpu", resourceClaimName: "web-0-gpu" }] };
const OWNED = { ownerReferences: [{ kind: "Pod", uid: "0a1b", controller: true }] };

describe("a pod's resource claim", () => {
  let kube: FakeKube;
  let clock: VirtualClock;
  let changed: string[];
  let claims: PodClaims;
  /** The API server's; undefined: there is none. */
  let object: { metadata: object; status: Record<string, unknown> } | undefined;

  beforeEach(() => {
    kube = new FakeKube();
    clock = new VirtualClock();
    changed = [];
    const results = ["one.example.com", "two.example.com", "one.example.com"].map((driver) => ({ driver }));
    object = {
      metadata: { uid: "claim-uid" },
      status: { reservedFor: [{ resource: "pods", uid: "0a1b" }], allocation: { devices: { results } } },
    };
    kube.intercept = ({ path }) => (path === CLAIM ? object : undefined);
    claims = new PodClaims({ kube, clock, random: () => 0, onChange: (uid) => void changed.push(uid) });
  });

  const read = async (pod: Pod = podOf()) => await claims.read(pod, signal);
  const waitsFor = (message: string) => ({ kind: "waiting", message });

  test("is had once it is allocated, and reserved for the pod, by the drivers of what was allocated", async () => {
    expect(await read()).toEqual({
      kind: "found",
      claims: [
        {
          ...{ name: "gpu", namespace: "shop", claim: "web-0-gpu", uid: "claim-uid" },
          drivers: ["one.example.com", "two.example.com"],
        },
      ],
    });
    await clock.advance(60_000);
    expect(changed).toEqual([]);
  });

  test("of a template is the one that the pod's status names, if it is the pod's own", async () => {
    object!.metadata = { uid: "claim-uid", ...OWNED };
    expect(await read(podOf(TEMPLATE, NAMED))).toMatchObject({ kind: "found", claims: [{ claim: "web-0-gpu" }] });
  });

  test("of a template that was left out on purpose is none", async () => {
    expect(await read(podOf(TEMPLATE, { resourceClaimStatuses: [{ name: "gpu" }] }))).toEqual({
      kind: "found",
      claims: [],
    });
    expect(kube.requests).toEqual([]);
  });

  test.each<[string, () => Pod | void, string]>([
    ["it has not been made from its template", () => podOf(TEMPLATE), 'pod "shop/web": ResourceClaim not created yet'],
    [
      "it is another pod's",
      () => podOf(TEMPLATE, NAMED),
      "ResourceClaim shop/web-0-gpu was not created for Pod shop/web (Pod is not owner)",
    ],
    [
      "it is reserved for others",
      () => void (object!.status["reservedFor"] = [{ resource: "pods", uid: "other" }]),
      "pod web (0a1b) is not allowed to use ResourceClaim web-0-gpu (claim-uid)",
    ],
    ["nothing is allocated", () => void delete object!.status["allocation"], "ResourceClaim web-0-gpu: not allocated"],
    [
      "there is none",
      () => void (object = undefined),
      'fetch ResourceClaim web-0-gpu: resourceclaims.resource.k8s.io "web-0-gpu" not found',
    ],
    [
      "it is of a kind that is not known here",
      () => podOf({ podGroupResourceClaim: "x" }),
      'pod "shop/web", spec.resourceClaim "gpu": none of the supported fields are set',
    ],
  ])("is waited for, in a kubelet's words, while %s", async (_why, setUp, words) => {
    const pod = setUp() ?? podOf();
    expect(await read(pod)).toEqual(waitsFor(words));
  });

  test("is waited for without a word while the authorizer does not know of the pod", async () => {
    kube.intercept = () => {
      throw failure(403, "Forbidden");
    };
    expect(await read()).toEqual({ kind: "waiting" });
    for (let look = 0; look < 5; look++) await read();
    expect(await read()).toMatchObject({ kind: "waiting", message: expect.stringContaining("fetch ResourceClaim") });
  });

  test("is looked for again, and no more when the pod is gone", async () => {
    delete object!.status["allocation"];
    await read();
    await clock.advance(500);
    expect(changed).toEqual(["0a1b"]);
    await read();
    claims.release("0a1b");
    await clock.advance(60_000);
    await settle();
    expect(changed).toEqual(["0a1b"]);
  });

  test("is not read when the pod has more than 64", async () => {
    const many = Array.from({ length: 65 }, (_, index) => ({ name: `c${index}`, resourceClaimName: "x" }));
    await expect(read(podWith({ resourceClaims: many }))).rejects.toThrow("65 resource claims, more than 64");
  });
});
