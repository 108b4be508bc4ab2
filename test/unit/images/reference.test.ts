import { describe, expect, test } from "vitest";
import { fullName, matchingCredentials, parseReference } from "../../../providers/local/images/reference.ts";

const DIGEST = `sha256:${"a".repeat(64)}`;

describe("full names of images", () => {
  test.each([
    ["busybox", "docker.io/library/busybox:latest"],
    ["busybox:1.36", "docker.io/library/busybox:1.36"],
    ["library/busybox", "docker.io/library/busybox:latest"],
    ["index.docker.io/library/busybox", "docker.io/library/busybox:latest"],
    ["ghcr.io/a/b/c:v1", "ghcr.io/a/b/c:v1"],
    ["localhost/a", "localhost/a:latest"],
    ["localhost:5000/a", "localhost:5000/a:latest"],
    ["127.0.0.1:5000/a/b:x", "127.0.0.1:5000/a/b:x"],
    ["Registry/a", "Registry/a:latest"],
    [`a/b@${DIGEST}`, `docker.io/a/b@${DIGEST}`],
    [`r.io/b:1@${DIGEST}`, `r.io/b:1@${DIGEST}`],
  ])("%s is %s", (image, full) => expect(fullName(parseReference(image))).toBe(full));
});

describe("names that are none", () => {
  test.each([
    "",
    ":1",
    "A/B",
    "a//b",
    "a b",
    "-a",
    "a/../b",
    "a:",
    `a@${DIGEST}0`,
    "a@md5:0",
    "r.io/",
    "a:b:c",
    "r.io/-/x",
    "x".repeat(256),
  ])("%j", (image) =>
    expect(() => parseReference(image)).toThrow(expect.objectContaining({ reason: "InvalidImageName" })),
  );
});

describe("credentials of a repository", () => {
  const matching = (image: string, keys: string[]) =>
    matchingCredentials(
      parseReference(image),
      keys.map((registry) => ({ registry })),
    ).map((auth) => auth.registry);

  test("the most specific path comes first", () =>
    expect(matching("r.io/team/app", ["r.io", "r.io/team/app", "r.io/team"])).toEqual([
      "r.io/team/app",
      "r.io/team",
      "r.io",
    ]));
  test("a path matches whole components only", () => expect(matching("r.io/team2/app", ["r.io/team"])).toEqual([]));
  test("a port must be the same", () => expect(matching("r.io:5000/a", ["r.io", "r.io:5000"])).toEqual(["r.io:5000"]));
  test("a star stands for one part of the host", () => {
    expect(matching("eu.r.io/a", ["*.r.io", "r.io"])).toEqual(["*.r.io"]);
    expect(matching("a.eu.r.io/a", ["*.r.io"])).toEqual([]);
  });
  test("a literal dot is not a wildcard", () =>
    expect(matching("rxio.com/a", ["r.io.com", "r*o.com"])).toEqual(["r*o.com"]));
  test("Docker Hub goes by several names", () =>
    expect(matching("busybox", ["https://index.docker.io/v1/", "docker.io", "ghcr.io"])).toEqual([
      "https://index.docker.io/v1/",
      "docker.io",
    ]));
});
