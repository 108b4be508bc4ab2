/** The image's root file system, made without an engine: the assembled tree on what its base would bring. */
import { chmod, copyFile, mkdir, readFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { runCommand } from "./harness/exec.ts";

/** Instructions of a stage of the Dockerfile's, each with its words; of those that stand there twice, the last. */
export async function dockerInstructions(stage = "agent"): Promise<Record<string, string[]>> {
  const lines = [...(await dockerStage(stage)).matchAll(/^([A-Z]+) (.*)$/gm)].map(
    ([, instruction, rest]) => [instruction!, rest!] as const,
  );
  return Object.fromEntries(
    lines.map(([instruction, rest]) => [
      instruction,
      rest.startsWith("[") ? (JSON.parse(rest) as string[]) : rest.split(" "),
    ]),
  );
}

async function dockerStage(name: string): Promise<string> {
  const text = await readFile(join(import.meta.dirname, "../../Dockerfile"), "utf8");
  const stage = text.split(/^(?=FROM )/m).find((each) => new RegExp(`^FROM \\S+ AS ${name}\\n`).test(each));
  if (stage === undefined) throw new Error(`the Dockerfile has no stage ${name}`);
  return stage;
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
