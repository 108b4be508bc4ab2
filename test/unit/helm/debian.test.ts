/** Packages of Debian that are unpacked without a package manager. */
import { execFileSync } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, truncateSync, writeFileSync, statSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { beforeEach, describe, expect, onTestFinished, test } from "vitest";
import { unpackArchive } from "../../../helm/debian.ts";
import { findTool } from "../../../providers/local/host/command.ts";

describe.skipIf(findTool("dpkg-deb") === undefined)("a package", () => {
  let folder: string;
  let deb: string;
  beforeEach(() => {
    folder = mkdtempSync(join(tmpdir(), "vmlet-deb-"));
    onTestFinished(() => rmSync(folder, { recursive: true, force: true }));
    const source = join(folder, "source");
    mkdirSync(join(source, "DEBIAN"), { recursive: true });
    const control = { Package: "sample", Version: "1", Architecture: "all", Maintainer: "nobody", Description: "one" };
    const lines = Object.entries(control).map(([name, value]) => `${name}: ${value}\n`);
    writeFileSync(join(source, "DEBIAN/control"), lines.join(""));
    writeFileSync(join(source, "first"), "first");
    deb = join(folder, "sample.deb");
    execFileSync("dpkg-deb", ["--build", "-Znone", "--root-owner-group", source, deb], { stdio: "ignore" });
    mkdirSync(join(folder, "tree"));
  });

  test("is unpacked", () => {
    unpackArchive(deb, join(folder, "tree"));
    expect(readFileSync(join(folder, "tree/first"), "utf8")).toBe("first");
  });

  test("that breaks off is an error, though what there is of it could be unpacked", () => {
    // Behind its last file, where tar misses nothing.
    truncateSync(deb, statSync(deb).size - 1024);
    expect(() => unpackArchive(deb, join(folder, "tree"))).toThrow("Command failed");
  });
});
