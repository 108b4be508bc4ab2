import { posix } from "node:path";
import * as fc from "fast-check";
import { describe, expect, test } from "vitest";
import { cleanPath, filePathProblem, subPathProblem } from "../../../src/podspec/render/paths.ts";

const anyPath = fc
  .array(fc.constantFrom("..", ".", "", "a", "..b", "c d", "…", "a..b"), { maxLength: 6 })
  .map((segments) => segments.join("/"));

describe("filePathProblem", () => {
  test.each(["a", "a/b", "dir/file.yaml", "a..b", "x/..y", ".hidden", "a b", "ünïcode"])("accepts %j", (path) => {
    expect(filePathProblem(path)).toBeUndefined();
  });

  test.each([
    ["", 'invalid path: must not be empty: ""'],
    ["/etc/passwd", "invalid path: must be relative path: /etc/passwd"],
    ["../x", "invalid path: must not contain '..': ../x"],
    ["a/../../x", "invalid path: must not contain '..': a/../../x"],
    ["..data", "invalid path: must not start with '..': ..data"],
    ["a/".repeat(2049), "invalid path: must be less than or equal to 4096 characters"],
    ["é".repeat(128), "invalid path: filenames must be less than or equal to 255 characters"],
    ["a\0b", "invalid path: must not contain a NUL byte"],
    [".", "invalid path: must name a file: ."],
  ])("refuses %j", (path, message) => {
    expect(filePathProblem(path)).toBe(message);
  });

  test("accepts nothing that leaves the volume", () => {
    fc.assert(
      fc.property(anyPath, (path) => {
        fc.pre(filePathProblem(path) === undefined);
        const resolved = posix.resolve("/volume", path);
        expect(resolved.startsWith("/volume/")).toBe(true);
        expect(posix.join("/volume", cleanPath(path))).toBe(resolved);
      }),
    );
  });
});

describe("subPathProblem", () => {
  test("accepts nothing that leaves the volume", () => {
    fc.assert(
      fc.property(anyPath, (path) => {
        fc.pre(subPathProblem(path) === undefined);
        expect(`${posix.resolve("/volume", path)}/`.startsWith("/volume/")).toBe(true);
      }),
    );
  });

  test("refuses an absolute path in the kubelet's words", () => {
    expect(subPathProblem("/tmp")).toBe("error SubPath `/tmp` must not be an absolute path");
  });

  test("refuses steps back in the kubelet's words", () => {
    expect(subPathProblem("a/../b")).toBe("unable to provision SubPath `a/../b`: must not contain '..'");
  });
});
