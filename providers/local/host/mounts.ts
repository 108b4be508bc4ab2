/** Mounts of this host, through mount(8): made, found below a folder, and removed. */
import { readFile, realpath } from "node:fs/promises";
import { findTool, run } from "./command.ts";
import { HostError } from "./host-error.ts";

/** What overlayfs cannot have in its options unescaped. */
const OVERLAY_SPECIAL = /[\\:,]/;

export async function mountOverlay(
  target: string,
  layers: { lower: string; upper: string; work: string },
): Promise<void> {
  const paths = [layers.lower, layers.upper, layers.work];
  const bad = paths.find((path) => OVERLAY_SPECIAL.test(path));
  if (bad !== undefined)
    throw new HostError(`${bad}: overlay folders must not have commas, colons or backslashes in their path`);
  const [lower, upper, work] = paths;
  await run(findTool("mount")!, [
    "-t",
    "overlay",
    "overlay",
    "-o",
    `lowerdir=${lower},upperdir=${upper},workdir=${work}`,
    target,
  ]);
}

/** `sizeBytes` undefined: half of the memory, the kernel's default. */
export async function mountTmpfs(
  target: string,
  options: { sizeBytes?: number | undefined; mode: string },
): Promise<void> {
  const size = options.sizeBytes === undefined ? "" : `,size=${options.sizeBytes}`;
  await run(findTool("mount")!, ["-t", "tmpfs", "tmpfs", "-o", `mode=${options.mode}${size},nosuid,nodev`, target]);
}

/** Binds the file of the open descriptor, even if its path now leads to another. */
export async function bindDescriptor(fd: number, target: string): Promise<void> {
  // Without canonicalising: mount(8) would otherwise resolve the magic link to a path and walk that one.
  await run(findTool("mount")!, ["--no-canonicalize", "--bind", "/proc/self/fd/3", target], { fd3: fd });
}

/** Oldest first: of two at one point, the later one is seen. */
async function allMounts(): Promise<{ point: string; options: string[] }[]> {
  const text = await readFile("/proc/self/mountinfo", "utf8");
  return text.split("\n").map((line) => {
    const [, , , , point = "", , ...more] = line.split(" ");
    return {
      point: point.replace(/\\([0-7]{3})/g, (_, octal: string) => String.fromCharCode(Number.parseInt(octal, 8))),
      // Up to the mark where those of the file system begin.
      options: more.slice(0, more.indexOf("-")),
    };
  });
}

/**
 * Mount points at and below `dir`, the innermost and latest first.
 * @internal
 */
export async function mountsBelow(dir: string): Promise<string[]> {
  const points = (await allMounts()).map(({ point }) => point);
  return points.filter((point) => point === dir || point.startsWith(`${dir}/`)).toReversed();
}

/** What becomes of mounts that are made later where the path is. */
export async function propagationOf(
  path: string,
): Promise<{ mountPoint: string; isShared: boolean; isSlave: boolean }> {
  const real = await realpath(path);
  const around = (await allMounts()).filter(
    ({ point }) => point === real || real.startsWith(point.endsWith("/") ? point : `${point}/`),
  );
  const { point, options } = around.reduce((best, each) => (each.point.length >= best.point.length ? each : best), {
    point: "",
    options: [] as string[],
  });
  const has = (word: string) => options.some((option) => option.startsWith(word));
  return { mountPoint: point, isShared: has("shared:"), isSlave: has("master:") };
}

/** Removes all mounts at and below `dir`, also those that are still in use somewhere. */
export async function unmountBelow(dir: string): Promise<void> {
  const points = await mountsBelow(dir);
  if (points.length === 0) return;
  try {
    await run(findTool("umount")!, ["--lazy", "--no-canonicalize", ...points]);
  } catch (thrown) {
    // Another process may have removed one of them in this instant: only what is left counts.
    if ((await mountsBelow(dir)).length > 0) throw thrown;
  }
}
