/** What `npm run image` may replace: an older layout, and nothing else that somebody names by mistake. */
import { existsSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { beforeEach, expect, onTestFinished, test } from "vitest";
import { OciLayout } from "../../../helm/oci-layout.ts";

let folder: string;
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), "vmlet-layout-"));
  onTestFinished(() => rmSync(folder, { recursive: true, force: true }));
});

test("a folder with anything else in it is left as it is", async () => {
  const file = join(folder, "package.json");
  writeFileSync(file, "{}");
  await expect(OciLayout.create(folder, 0)).rejects.toThrow("holds something else");
  expect(existsSync(file)).toBe(true);
});

test("a layout is replaced, also one that was not finished", async () => {
  await OciLayout.create(folder, 0);
  writeFileSync(join(folder, "blobs/sha256/old"), "");
  const layout = await OciLayout.create(folder, 0);
  expect(existsSync(join(folder, "blobs/sha256/old"))).toBe(false);
  await layout.close();
  await expect(OciLayout.create(folder, 0)).resolves.toBeInstanceOf(OciLayout);
});

test("a folder that is absent is made", async () => {
  await expect(OciLayout.create(join(folder, "new"), 0)).resolves.toBeInstanceOf(OciLayout);
});
