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

export interface MountPoint {
  path: string;
  /** Of this mount alone. */
  options: readonly string[];
  /** `shared:N`, `master:N`: what becomes of mounts that are made later in it. */
  propagation: readonly string[];
  /** Of its file system: `xfs`. */
  type: string;
  /** Of its file system, wherever it is mounted. */
  superOptions: readonly string[];
}

/** All that this process sees, the innermost and latest first. */
export async function mountPoints(): Promise<MountPoint[]> {
  return parseMounts(await readFile("/proc/self/mountinfo", "utf8"));
}

/** @param text of /proc/PID/mountinfo */
export function parseMounts(text: string): MountPoint[] {
  return text
    .split("\n")
    .map((line) => line.split(" "))
    .map((fields) => ({
      path: (fields[4] ?? "").replace(/\\([0-7]{3})/g, (_, octal: string) =>
        String.fromCharCode(Number.parseInt(octal, 8)),
      ),
      options: (fields[5] ?? "").split(","),
      // Up to the mark where those of the file system begin.
      propagation: fields.slice(6, Math.max(6, fields.indexOf("-", 6))),
      type: fields.at(-3) ?? "",
      superOptions: (fields.at(-1) ?? "").split(","),
    }))
    .toReversed();
}

/**
 * Mount points at and below `dir`, the innermost and latest first.
 * @internal
 */
export async function mountsBelow(dir: string): Promise<string[]> {
  return (await mountPoints()).map(({ path }) => path).filter((point) => point === dir || point.startsWith(`${dir}/`));
}

/** What becomes of mounts that are made later where the path is. */
export async function propagationOf(
  path: string,
): Promise<{ mountPoint: string; isShared: boolean; isSlave: boolean }> {
  const real = await realpath(path);
  const around = (await mountPoints()).filter(
    ({ path: point }) => point === real || real.startsWith(point.endsWith("/") ? point : `${point}/`),
  );
  // Of two at one point, the later one is seen.
  const found = around.toSorted((a, b) => b.path.length - a.path.length)[0];
  const has = (word: string) => found?.propagation.some((option) => option.startsWith(word)) === true;
  return { mountPoint: found?.path ?? "", isShared: has("shared:"), isSlave: has("master:") };
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
