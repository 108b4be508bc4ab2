/** Devices of this host as a runtime is told of them. */
import { mkdtempSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, onTestFinished, test } from "vitest";
import { deviceNodes } from "../../../providers/local/bundle/device-nodes.ts";

const given = (hostPath: string, path = "/dev/given") => deviceNodes("a", [{ path, hostPath, permissions: "r" }]);

function folder(): string {
  const dir = mkdtempSync(join(tmpdir(), "vmlet-nodes-"));
  onTestFinished(() => rmSync(dir, { recursive: true }));
  return dir;
}

test("a node has its numbers, and the name and permissions that the plugin gives", () => {
  expect(given("/dev/null")).toEqual([
    expect.objectContaining({ type: "c", major: 1, minor: 3, path: "/dev/given", hostPath: "/dev/null", access: "r" }),
  ]);
});

test("of a folder all devices are given, under their own names", () => {
  const dir = folder();
  for (const name of ["null", "zero"]) symlinkSync(`/dev/${name}`, join(dir, name));
  writeFileSync(join(dir, "file"), "");
  expect(given(dir, "/dev/all").map(({ path, minor }) => [path, minor])).toEqual([
    ["/dev/all/null", 3],
    ["/dev/all/zero", 5],
  ]);
});

test.each([
  ["that is not there", () => "/dev/nobody's"],
  ["that is a file", () => import.meta.filename],
  ["that is a folder without any", folder],
])("one %s is an error that names it", (_what, path) => {
  const hostPath = path();
  expect(() => given(hostPath)).toThrow(`container a: ${hostPath}: `);
});
