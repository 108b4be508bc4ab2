/**
 * Files in a machine's volumes (configMaps, secrets, tokens), replaced so that a program sees all of the old ones or
 * all of the new ones.
 */
import {
  chmodSync,
  chownSync,
  lstatSync,
  mkdirSync,
  readdirSync,
  readlinkSync,
  renameSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { randomBytes } from "node:crypto";
import { dirname, join } from "node:path";
import { type FileEntry, ProviderError } from "../../../src/provider/kit/index.ts";

interface FilesVolumeOptions {
  /** Group of every file and folder (fsGroup); files become readable for it, as kubelet does. */
  group?: number | undefined;
  /** Added to each owner and group: the host's first id when the container's are mapped. Default 0. */
  idOffset?: number | undefined;
}

/**
 * Puts files into `dir` as kubelet's AtomicWriter does: the content in a fresh hidden folder, `..data` a link to it,
 * and one link per first path segment into `..data`. A program that reads through `..data` sees all of the old files or
 * all of the new ones; the links in `dir` stay the same inode over an update of the same names.
 *
 * @throws ProviderError invalid for a path that would leave the volume.
 */
export function writeFilesVolume(dir: string, files: readonly FileEntry[], options: FilesVolumeOptions = {}): void {
  for (const { path } of files) assertInside(path);
  mkdirSync(dir, { recursive: true, mode: 0o755 });
  const payload = `..${randomBytes(8).toString("hex")}`;
  const root = join(dir, payload);
  mkdirSync(root, { mode: 0o755 });
  for (const file of files) writeEntry(root, file, options);
  if (options.group !== undefined) ownTree(root, options);
  chmodSync(root, 0o755);

  const before = currentPayload(dir);
  const link = join(dir, "..data_tmp");
  rmSync(link, { force: true });
  symlinkSync(payload, link);
  renameSync(link, join(dir, "..data"));

  const wanted = new Set(files.map(({ path }) => path.split("/")[0]!));
  // As in a kubelet (AtomicWriter), what is new is there before what is old goes.
  for (const name of wanted) {
    if (lstatSync(join(dir, name), { throwIfNoEntry: false }) === undefined)
      symlinkSync(join("..data", name), join(dir, name));
  }
  for (const name of readdirSync(dir)) {
    if (!name.startsWith("..") && !wanted.has(name)) rmSync(join(dir, name), { recursive: true, force: true });
  }
  for (const name of readdirSync(dir)) {
    // What an interrupted write has left is removed too.
    if (name.startsWith("..") && name !== "..data" && name !== payload)
      rmSync(join(dir, name), { recursive: true, force: true });
  }
  if (before !== undefined && before !== payload) rmSync(join(dir, before), { recursive: true, force: true });
}

function assertInside(path: string): void {
  const segments = path.split("/");
  const bad =
    path === "" ||
    path.startsWith("/") ||
    path.includes("\0") ||
    segments.some((segment) => segment === "" || segment === "." || segment === "..");
  // Names that begin with two dots are the writer's own.
  if (bad || segments[0]!.startsWith(".."))
    throw new ProviderError("invalid", `file path "${path}" must be relative and stay inside its volume`, {
      field: "volumes.files.path",
    });
}

function writeEntry(root: string, file: FileEntry, { idOffset = 0 }: FilesVolumeOptions): void {
  const path = join(root, file.path);
  mkdirSync(dirname(path), { recursive: true, mode: 0o755 });
  writeFileSync(path, Buffer.from(file.content_b64, "base64"), { mode: 0o600 });
  if (file.uid !== undefined) chownSync(path, file.uid + idOffset, idOffset);
  // Not through writeFile's mode, which the umask would narrow.
  chmodSync(path, file.mode & 0o7777);
}

function ownTree(root: string, options: FilesVolumeOptions): void {
  const { group = 0, idOffset = 0 } = options;
  for (const entry of readdirSync(root, { recursive: true, withFileTypes: true })) {
    const path = join(entry.parentPath, entry.name);
    const { uid, mode } = lstatSync(path);
    chownSync(path, uid, group + idOffset);
    chmodSync(path, (mode & 0o7777) | (entry.isDirectory() ? 0o2550 : 0o440));
  }
}

function currentPayload(dir: string): string | undefined {
  try {
    return readlinkSync(join(dir, "..data"));
  } catch {
    return undefined;
  }
}
