import { describe, expect, test } from "vitest";
import {
  ALL_LINUX_CAPABILITIES,
  bind,
  capabilitiesInMask,
  capabilitiesOf,
  commandOf,
  envOf,
  ociConfig,
  ociResources,
  type BundleInput,
} from "../../../providers/local/bundle/bundle.ts";
import { DEFAULT_CAPABILITIES } from "../../../providers/local/bundle/container-policy.ts";

const image = { entrypoint: ["/entry", "-x"], cmd: ["image-arg"] };

describe("command and args, by Kubernetes' rules", () => {
  const command = (spec: { command?: string[]; args?: string[] }, from = image) =>
    commandOf({ name: "a", image: "i", ...spec }, from);
  test.each([
    ["neither: the image's entrypoint and cmd", {}, ["/entry", "-x", "image-arg"]],
    ["args alone: the image's entrypoint with them", { args: ["b"] }, ["/entry", "-x", "b"]],
    ["a command alone: without the image's cmd", { command: ["/c"] }, ["/c"]],
    ["both: nothing of the image's", { command: ["/c"], args: ["b"] }, ["/c", "b"]],
    ["empty lists count as absent", { command: [], args: [] }, ["/entry", "-x", "image-arg"]],
  ])("%s", (_title, spec, expected) => expect(command(spec)).toEqual(expected));
  test("nothing at all is an error that says what to set", () =>
    expect(() => commandOf({ name: "a", image: "i" }, {})).toThrow(
      /container a: no command specified.*set command or args/,
    ));
});

describe("environment", () => {
  const env = (spec: object, from: object = {}) =>
    Object.fromEntries(envOf(spec, from, { home: "/home/x" }, "host-0").map((entry) => entry.split(/=(.*)/s)));
  test("the container's value wins over the image's, the image's over the default", () =>
    expect(env({ env: [{ name: "A", value: "pod" }] }, { env: ["A=image", "B=image", "PATH=/p"] })).toMatchObject({
      A: "pod",
      B: "image",
      PATH: "/p",
    }));
  test("PATH, HOME and HOSTNAME have values when nobody gives any", () =>
    expect(env({})).toEqual({ PATH: expect.stringContaining("/usr/bin"), HOME: "/home/x", HOSTNAME: "host-0" }));
  test("a value may hold what separates name and value", () => expect(env({}, { env: ["A=b=c"] })["A"]).toBe("b=c"));
  test("a terminal has a type", () => expect(env({ tty: true })["TERM"]).toBe("xterm"));
});

describe("capabilities", () => {
  test("the default set is containerd's", () => expect(capabilitiesOf("a", {})).toEqual(DEFAULT_CAPABILITIES));
  test("dropped ones are gone, added ones there, with or without the prefix", () => {
    const capabilities = capabilitiesOf("a", {
      capabilities_drop: ["CHOWN", "CAP_KILL"],
      capabilities_add: ["net_admin"],
    });
    expect(capabilities).not.toContain("CAP_CHOWN");
    expect(capabilities).not.toContain("CAP_KILL");
    expect(capabilities).toContain("CAP_NET_ADMIN");
  });
  test("drop ALL leaves what is added", () =>
    expect(capabilitiesOf("a", { capabilities_drop: ["ALL"], capabilities_add: ["SYS_TIME"] })).toEqual([
      "CAP_SYS_TIME",
    ]));
  test("add ALL minus a dropped one", () => {
    const capabilities = capabilitiesOf("a", { capabilities_add: ["ALL"], capabilities_drop: ["SYS_ADMIN"] });
    expect(capabilities).toHaveLength(ALL_LINUX_CAPABILITIES.length - 1);
    expect(capabilities).not.toContain("CAP_SYS_ADMIN");
  });
  test("privileged is all that this process could give", () =>
    expect(capabilitiesOf("a", { privileged: true }, ["CAP_CHOWN"])).toEqual(["CAP_CHOWN"]));
  test("one that Linux does not know is refused by name", () =>
    expect(() => capabilitiesOf("a", { capabilities_add: ["FLY"] })).toThrow(/unknown capability "FLY"/));
  test("a mask names its capabilities", () =>
    expect(capabilitiesInMask("0000000000200401")).toEqual(["CAP_CHOWN", "CAP_NET_BIND_SERVICE", "CAP_SYS_ADMIN"]));
});

describe("requests and limits", () => {
  test("shares follow the request, quota and memory the limit", () =>
    expect(
      ociResources({ requests: { cpu_millis: 250 }, limits: { cpu_millis: 500, memory_bytes: 1 << 26 } }, undefined, 1),
    ).toEqual({
      cpu: { shares: 256, period: 100_000, quota: 50_000 },
      memory: { limit: 1 << 26 },
    }));
  test("without a request the limit counts as one", () =>
    expect(ociResources({ limits: { cpu_millis: 1000 } }, undefined, 1).cpu).toMatchObject({ shares: 1024 }));
  test("nothing asked: the smallest share, no quota", () =>
    expect(ociResources(undefined, undefined, 1)).toEqual({ cpu: { shares: 2 } }));
  test("on cgroup v2 swap is ruled out as well", () =>
    expect(ociResources({ limits: { memory_bytes: 5 } }, undefined, 2).memory).toEqual({ limit: 5, swap: 5 }));
  test("the machine's limit is that of a container without one", () =>
    expect(ociResources({ limits: { memory_bytes: 5 } }, { limits: { memory_bytes: 7, cpu_millis: 500 } }, 1)).toEqual({
      cpu: { shares: 512, period: 100_000, quota: 50_000 },
      memory: { limit: 5 },
    }));
});

describe("configuration", () => {
  const config = (more: Partial<BundleInput> = {}, spec: object = {}) =>
    ociConfig({
      spec: { name: "a", image: "i", command: ["/c"], ...spec },
      image: {},
      user: { uid: 7, gid: 8, supplementalGroups: [9], home: "/" },
      hostname: "h",
      rootfs: "/r",
      namespaces: [{ type: "network", path: "/n" }, { type: "pid" }],
      mounts: [],
      cgroupsPath: "/g",
      cgroupVersion: 1,
      sysctls: [],
      seccomp: (capabilities) => ({ for: capabilities.length }),
      pidsLimit: 10,
      ...more,
    }) as {
      mounts: { destination: string }[];
      linux: Record<string, unknown>;
      process: Record<string, unknown>;
      root: unknown;
    };

  const device = {
    ...({ type: "c", major: 1, minor: 3, fileMode: 0o666, uid: 0, gid: 0 } as const),
    ...{ path: "/dev/given", hostPath: "/dev/null", access: "rw" },
  };
  const rules = ({ linux }: ReturnType<typeof config>) => (linux["resources"] as { devices: unknown }).devices;

  test("a device is made in the container, and its control group lets that one through and no other", () => {
    const made = config({ devices: { nodes: [device], areBound: false } });
    const { access: _access, hostPath: _hostPath, ...node } = device;
    expect([made.linux["devices"], rules(made)]).toEqual([
      [node],
      [
        { allow: false, access: "rwm" },
        { allow: true, type: "c", major: 1, minor: 3, access: "rw" },
      ],
    ]);
  });

  test("a device that is mounted is not made, and its control group lets it through all the same", () => {
    const made = config({ devices: { nodes: [device], areBound: true } });
    expect([made.linux["devices"], rules(made)]).toEqual([
      undefined,
      expect.arrayContaining([expect.objectContaining({ minor: 3 })]),
    ]);
  });

  test("an outer mount comes before those inside it, whatever the spec's order", () => {
    const mount = (destination: string) => ({ destination, type: "bind", source: "/s", options: [] });
    const own = config({ mounts: [mount("/a/b/c"), mount("/a"), mount("/a/b")] })
      .mounts.map(({ destination }) => destination)
      .filter((path) => path.startsWith("/a"));
    expect(own).toEqual(["/a", "/a/b", "/a/b/c"]);
  });
  test.each<[string, readonly ("rprivate" | "rslave" | "rshared")[], string | undefined]>([
    ["no mount does", ["rprivate"], undefined],
    ["one lets the host's in", ["rprivate", "rslave"], "rslave"],
    ["one lets its own out, too", ["rslave", "rshared"], "rshared"],
  ])("the root lets through what its mounts let through: %s", (_what, all, propagation) => {
    const mounts = all.map((each, index) => bind("/s", `/m${index}`, false, each));
    expect(config({ mounts }).linux["rootfsPropagation"]).toBe(propagation);
  });
  test("seccomp is made for the container's own capabilities", () =>
    expect(config({}, { security: { capabilities_drop: ["ALL"] } }).linux["seccomp"]).toEqual({ for: 0 }));
  test.each([
    ["unconfined", { seccomp: "unconfined" }],
    ["privileged", { privileged: true }],
  ])("%s has no filter", (_title, security) => expect(config({}, { security }).linux).not.toHaveProperty("seccomp"));
  test("an AppArmor profile is that of the container's process", () => {
    const profile = (more: object) => config(more).process["apparmorProfile"];
    expect([profile({ apparmorProfile: "p" }), profile({})]).toEqual(["p", undefined]);
  });
  test("a privileged container sees all of /proc", () =>
    expect(config({}, { security: { privileged: true } }).linux).not.toHaveProperty("maskedPaths"));
  test("no capability is inheritable", () =>
    expect(config().process["capabilities"]).not.toHaveProperty("inheritable"));
  test("a relative working directory starts at the root", () =>
    expect(config({}, { working_dir: "x" }).process["cwd"]).toBe("/x"));
  test("on cgroup v2 the kernel kills a container that is out of memory as a whole", () => {
    const resources = (cgroupVersion: 1 | 2) => config({ cgroupVersion }).linux["resources"];
    expect(resources(2)).toMatchObject({ unified: { "memory.oom.group": "1" } });
    expect(resources(1)).not.toHaveProperty("unified");
  });
  test.each([
    [-1000, -997],
    [-5, -5],
  ])("with a lowest oom_score_adj of %d, a guaranteed container has %d", (lowestOomScoreAdj, expected) => {
    const resources = { limits: { cpu_millis: 1, memory_bytes: 1 } };
    const spec = { labels: {}, restart_policy: "never" as const, containers: [{ name: "a", image: "i", resources }] };
    expect(config({ machine: { spec, memoryBytes: 100, lowestOomScoreAdj } }).process["oomScoreAdj"]).toBe(expected);
  });
});
