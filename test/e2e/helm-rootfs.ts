/** The image's root file system, made without an engine: the assembled tree on what its base would bring. */
import { chmod, copyFile, mkdir, readFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { runCommand } from "./harness/exec.ts";

/** The Dockerfile's last stage's instructions, each with its words. */
export async function dockerInstructions(): Promise<Record<string, string[]>> {
  const text = await readFile(join(import.meta.dirname, "../../Dockerfile"), "utf8");
  const stage = text.slice(text.lastIndexOf("\nFROM "));
  const lines = [...stage.matchAll(/^([A-Z]+) (.*)$/gm)].map(([, instruction, rest]) => [instruction!, rest!] as const);
  return Object.fromEntries(
    lines.map(([instruction, rest]) => [
      instruction,
      rest.startsWith("[") ? (JSON.parse(rest) as string[]) : rest.split(" "),
    ]),
  );
}

/** What a base such as distroless/cc brings: the C and C++ libraries that the tree's Node was linked with. */
export async function addLibraries(rootfs: string): Promise<void> {
  const { stdout } = await runCommand("ldd", [join(rootfs, "app/bin/node")]);
  for (const path of stdout.match(/\/\S+\.so\S*/g) ?? []) {
    await mkdir(dirname(join(rootfs, path)), { recursive: true });
    await copyFile(path, join(rootfs, path));
    await chmod(join(rootfs, path), 0o755);
  }
}
