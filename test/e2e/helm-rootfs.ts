/** The image's root file system, made without an engine: the assembled tree on what its base would bring. */
import { chmod, copyFile, mkdir, readFile, rm } from "node:fs/promises";
import { dirname, join } from "node:path";
import { cached, cacheKey } from "./harness/cache.ts";
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

/**
 * What the backend's stage has beside the assembled tree: the packages that it names on Debian's smallest system, which
 * is its base, and the programs that the stage `runtime` builds, by its own commands.
 * @returns tars, one for each layer
 */
export async function backendUserland(): Promise<string[]> {
  const backend = await dockerStage("backend");
  const packages = /apt-get install ((?:[^&]|\\\n)+)&&/.exec(backend)![1]!.match(/(?<=\s)[a-z][\w-]+/g)!;
  const system = await cached(`backend-packages-${cacheKey([packages.join(" ")])}.tar`, async (temporary) => {
    const args = ["--variant=minbase", "--skip=output/dev", "--format=tar", `--include=${packages.join(",")}`];
    await runCommand("mmdebstrap", ["--quiet", ...args, "bookworm", temporary]);
  });
  const commands = (await dockerStage("runtime")).match(/^RUN cd [^]*?[^\\]$/gm)!.map((each) => each.slice(4));
  const modules = join(import.meta.dirname, "../../helm/runtime");
  const pins = ["containerd", "runc"].map((module) => readFile(join(modules, module, "go.sum")));
  const key = cacheKey([...commands, ...(await Promise.all(pins)), (await runCommand("go", ["version"])).stdout]);
  const programs = await cached(`backend-programs-${key}.tar`, async (temporary) => {
    const folder = `${temporary}.bin`;
    await mkdir(join(folder, "usr/local/bin"), { recursive: true });
    for (const command of commands) {
      const here = command
        .replaceAll("/runtime/bin/", `${folder}/usr/local/bin/`)
        .replace("cd /runtime", `cd ${modules}`);
      await runCommand("sh", ["-ec", here], { env: process.env });
    }
    await runCommand("tar", ["--create", "--file", temporary, "--directory", folder, "usr"]);
    await rm(folder, { recursive: true });
  });
  return [system, programs];
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
