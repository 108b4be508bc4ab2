import { describe, expect, test } from "vitest";
import { ALL_CAPABILITIES, type Capability } from "../../../src/provider/capabilities.ts";
import type { ContainerState } from "../../../src/provider/machine.ts";
import { diffMachine, type DesiredMachine } from "../../../src/podspec/render/diff.ts";
import { isSameImage } from "../../../src/podspec/image-name.ts";
import { machine } from "../../support/builders.ts";

const state = (fields: Partial<ContainerState> = {}): ContainerState => ({
  name: "app",
  kind: "main",
  state: "running",
  ready: true,
  started: true,
  restart_count: 0,
  image: "docker.io/library/nginx:1",
  image_id: "sha256:1",
  ...fields,
});

const observed = machine({
  containers: [state({ resources: { requests: { cpu_millis: 500 }, limits: { memory_bytes: 100 } } })],
  file_versions: [{ volume: "conf", version: "v1" }],
});

const same: DesiredMachine = {
  containers: [
    { name: "app", image: "nginx:1", resources: { requests: { cpu_millis: 500 }, limits: { memory_bytes: 100 } } },
  ],
  ephemeralContainers: [],
  volumes: [{ name: "conf", type: "files", version: "v1", files: [] }],
};

function diff(change: Partial<DesiredMachine>, lacking: Capability[] = []) {
  return diffMachine({ ...same, ...change }, observed, new Set(ALL_CAPABILITIES.filter((c) => !lacking.includes(c))));
}

describe("diffMachine", () => {
  test("finds nothing to change on a observed that matches", () => {
    expect(diff({})).toEqual({ patch: undefined, resized: [], events: [] });
  });

  test("replaces files whose version differs", () => {
    const files = [{ path: "a", mode: 420, content_b64: "" }];
    const volumes = [{ name: "conf", type: "files" as const, version: "v2", files }];
    expect(diff({ volumes }).patch).toEqual({ files: [{ volume: "conf", version: "v2", files }] });
    expect(diff({ volumes }, ["patch_files"]).patch).toBeUndefined();
  });

  test("changes an image, or says that it cannot", () => {
    const containers = [{ ...same.containers[0]!, image: "nginx:2" }];
    expect(diff({ containers }).patch).toEqual({ containers: [{ name: "app", image: "nginx:2" }] });
    expect(diff({ containers }, ["patch_image"])).toMatchObject({
      patch: undefined,
      events: [{ reason: "FailedUpdate" }],
    });
  });

  test("lists resources that differ apart from the patch, because they may not fit", () => {
    const resources = { requests: { cpu_millis: 700 }, limits: { memory_bytes: 100 } };
    const containers = [{ name: "app", image: "nginx:1", resources }];
    expect(diff({ containers })).toEqual({ patch: undefined, resized: [{ container: "app", resources }], events: [] });
  });

  test("restarts a container only for a change of what its resize policy names", () => {
    const resized = (restartFor: string[]) => {
      const resources = { requests: { cpu_millis: 700 }, limits: { memory_bytes: 100 } };
      return diff({ containers: [{ name: "app", image: "nginx:1", resources, restartFor }] }).resized[0]?.restart;
    };
    expect([resized(["cpu"]), resized(["memory"])]).toEqual([true, undefined]);
  });

  describe("of a machine's own resources", () => {
    const own = { requests: { cpu_millis: 500 }, limits: { cpu_millis: 700, memory_bytes: 100 } };
    const bare: DesiredMachine["containers"][number] = {
      name: "app",
      image: "nginx:1",
      resources: {},
      restartFor: ["cpu"],
    };
    const change = ({ to = own, areAsked = true, containers = [bare] } = {}, lacking: Capability[] = []) => {
      const before = { ...own, limits: { cpu_millis: 600, memory_bytes: 100 } };
      const desired = { ...same, containers, resources: { amounts: to, areAsked } };
      const now = { ...observed, resources: before, containers: [state({ resources: {} })] };
      return diffMachine(desired, now, new Set(ALL_CAPABILITIES.filter((each) => !lacking.includes(each))));
    };

    test("lists a change, and the containers whose limit it is", () => {
      expect(change()).toMatchObject({
        machineResized: own,
        resized: [{ container: "app", resources: {}, restart: true }],
      });
    });

    test("leaves a container alone that has a limit of its own", () => {
      const resources = { limits: { cpu_millis: 50 } };
      const containers = [{ ...bare, resources, restartFor: [] }];
      const now = { ...observed, resources: {}, containers: [state({ resources })] };
      const amounts = { limits: { cpu_millis: 80 } };
      const desired = { ...same, containers, resources: { amounts, areAsked: true } };
      expect(diffMachine(desired, now, new Set(ALL_CAPABILITIES))).toMatchObject({
        machineResized: amounts,
        resized: [],
      });
    });

    test("goes with its containers where the pod has none of its own, and only where it can", () => {
      const containers = [{ ...bare, resources: { requests: { cpu_millis: 1 } } }];
      expect(change({ areAsked: false, containers }).machineResized).toEqual(own);
      expect(change({ areAsked: false, containers }, ["resize_machine"]).machineResized).toBeUndefined();
      expect(change({}, ["resize_machine"]).machineResized).toEqual(own);
    });

    test("is none where nobody says what the machine has", () => {
      expect(diff({ resources: { amounts: own, areAsked: true } }).machineResized).toBeUndefined();
    });
  });

  test("adds ephemeral containers that the observed does not have", () => {
    const ephemeralContainers = [{ name: "debug", image: "busybox" }];
    expect(diff({ ephemeralContainers }).patch).toEqual({ ephemeral_containers: ephemeralContainers });
    expect(diff({ ephemeralContainers: [{ name: "app", image: "nginx:1" }] }).patch).toBeUndefined();
  });
});

describe("isSameImage", () => {
  test.each([
    ["nginx", "docker.io/library/nginx:latest", true],
    ["nginx:1", "index.docker.io/library/nginx:1", true],
    ["team/app:1", "docker.io/team/app:1", true],
    ["localhost/app", "localhost/app:latest", true],
    ["reg:5000/app", "reg:5000/app:latest", true],
    ["app@sha256:1", "docker.io/library/app@sha256:1", true],
    ["nginx:1", "nginx:2", false],
    ["reg.io/nginx", "nginx", false],
  ])("%s and %s: %s", (a, b, expected) => {
    expect(isSameImage(a, b)).toBe(expected);
  });
});
