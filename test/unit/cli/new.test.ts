/** `vmlet new backend`: what it writes, and what it leaves alone. */
import { mkdtemp, readdir, readFile, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import { nextSteps, writeSample } from "../../../src/cli/new.ts";

const samples = join(import.meta.dirname, "../../../examples/backends");
const folder = (): Promise<string> => mkdtemp(join(tmpdir(), "vmlet-new-"));

describe("a new backend", () => {
  test.each(["python", "go", "typescript"])("in %s is the sample that CI holds to the kit", async (lang) => {
    const dir = join(await folder(), "deep/backend");
    expect(await writeSample(lang, dir)).toBe(true);
    const files = await readdir(dir);
    expect(files.toSorted()).toEqual((await readdir(join(samples, lang))).toSorted());
    for (const file of files)
      expect(await readFile(join(dir, file), "utf8")).toBe(await readFile(join(samples, lang, file), "utf8"));
  });

  test("is not written where something lies", async () => {
    const dir = await folder();
    await writeFile(join(dir, "mine"), "");
    expect(await writeSample("go", dir)).toBe(false);
    expect(await readdir(dir)).toEqual(["mine"]);
  });

  test("comes with the commands that start and check it", () => {
    expect(nextSteps("python", "my backend").slice(2)).toEqual([
      "  (cd 'my backend' && python3 backend.py)",
      "  vmlet conformance http://127.0.0.1:8480 --token-file 'my backend/state/token'",
    ]);
  });
});
