import { describe, expect, test } from "vitest";
import { nodePlatform } from "../../../src/node/platform.ts";

describe("the platform of a node's machines", () => {
  const configured = { os: "linux", architecture: "riscv64" };

  test("is what the backend says", () => {
    const reported = { os: "windows", architecture: "arm64" };
    expect(nodePlatform({ reported, configured, hostArchitecture: "x64" })).toEqual({ ...reported, assumed: false });
  });

  test("is what the configuration says where the backend does not", () => {
    expect(nodePlatform({ reported: {}, configured, hostArchitecture: "x64" })).toEqual({
      ...configured,
      assumed: false,
    });
  });

  test.each([
    ["x64", "amd64"],
    ["arm64", "arm64"],
    ["s390x", "s390x"],
    ["ppc64", "ppc64le"],
  ])("is this host's where nobody says: %s is %s", (hostArchitecture, architecture) => {
    expect(nodePlatform({ reported: {}, configured: {}, hostArchitecture })).toEqual({
      os: "linux",
      architecture,
      assumed: false,
    });
  });

  test("is only assumed until the backend has answered", () => {
    expect(nodePlatform({ reported: undefined, configured, hostArchitecture: "x64" })).toEqual({
      ...configured,
      assumed: true,
    });
  });

  test("is not what a provider's module says when no label could hold that", () => {
    const reported = { os: "Linux 6.1", architecture: "x86_64" };
    expect(nodePlatform({ reported, configured, hostArchitecture: "x64" })).toMatchObject(configured);
  });
});
