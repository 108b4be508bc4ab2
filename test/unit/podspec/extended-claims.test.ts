import { describe, expect, test } from "vitest";
import type { Pod } from "../../../src/kube/wire.ts";
import { withExtendedClaims } from "../../../src/podspec/extended-claims.ts";
import { podWith } from "./fixtures.ts";

const GPU = "vendor.example/gpu";
const gpus = (count: string) => ({ requests: { cpu: "1", [GPU]: count }, limits: { [GPU]: count } });
const mapping = (containerName: string, requestName: string) => ({ containerName, resourceName: GPU, requestName });

const podOf = (spec: Partial<Pod["spec"]>, ...requestMappings: ReturnType<typeof mapping>[]): Pod => ({
  ...podWith({ containers: [{ name: "main", resources: gpus("2") }, { name: "log" }], ...spec }),
  status: { extendedResourceClaimStatus: { resourceClaimName: "web-extended-resources-x7k2p", requestMappings } },
});

describe("extended resources that the scheduler has claimed for a pod", () => {
  test("are a claim of the pod, of which each container has its requests in place of the resource", () => {
    const { spec } = withExtendedClaims(podOf({}, mapping("main", "container-0-request-0")));
    expect(spec).toMatchObject({
      resourceClaims: [{ name: "extended-resources", resourceClaimName: "web-extended-resources-x7k2p" }],
      containers: [
        {
          name: "main",
          resources: {
            requests: { cpu: "1" },
            limits: {},
            claims: [{ name: "extended-resources", request: "container-0-request-0" }],
          },
        },
        { name: "log" },
      ],
    });
    expect(spec?.containers[0]?.resources?.requests).not.toHaveProperty([GPU]);
  });

  test("of init containers are so, and several requests of one container are all its own", () => {
    const setup = { name: "setup", resources: gpus("1") };
    const pod = podOf({ initContainers: [setup] }, mapping("setup", "a"), mapping("main", "b"), mapping("main", "c"));
    const { initContainers, containers } = withExtendedClaims(pod).spec!;
    const requests = [initContainers![0]!, containers[0]!].map(({ resources }) =>
      resources?.claims?.map(({ request }) => request),
    );
    expect(requests).toEqual([["a"], ["b", "c"]]);
  });

  test("stay beside claims that the pod names, under a name that none of them has", () => {
    const claims = [{ name: "extended-resources", resourceClaimName: "own" }];
    const { spec } = withExtendedClaims(podOf({ resourceClaims: claims }, mapping("main", "a")));
    expect(spec?.resourceClaims?.map(({ name }) => name)).toEqual(["extended-resources", "extended-resources-1"]);
    expect(spec?.containers[0]?.resources?.claims).toEqual([{ name: "extended-resources-1", request: "a" }]);
  });

  test("of which a container has none by now leave it as it is", () => {
    const pod = podOf({ containers: [{ name: "main", resources: gpus("0") }] }, mapping("main", "a"));
    expect(withExtendedClaims(pod).spec?.containers).toEqual(pod.spec?.containers);
  });

  test("a pod without any is the same pod", () => {
    const pod = podWith({});
    expect(withExtendedClaims(pod)).toBe(pod);
  });
});
