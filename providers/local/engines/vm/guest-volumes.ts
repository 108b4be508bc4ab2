/** Files of a machine's own volumes, into its guest and out of it. */
import { readlinkSync } from "node:fs";
import { join } from "node:path";
import type { Volume } from "../../../../src/provider/kit/index.ts";
import { writeFilesVolume } from "../../bundle/volume-files.ts";
import type { MachineHome } from "../../engine.ts";
import { findTool, run } from "../../host/command.ts";
import { type GuestCommand, quote } from "./control.ts";

/** What has a files volume in the guest as it is written here. */
export async function filesScript(
  { spec, secretDir }: Pick<MachineHome, "spec" | "secretDir">,
  volume: Extract<Volume, { type: "files" }>,
): Promise<string> {
  const group = spec.security?.fs_group;
  const dir = join(secretDir, "files", volume.name);
  writeFilesVolume(dir, volume.files, group === undefined ? {} : { group });
  const { stdout } = await run(findTool("tar")!, ["-C", dir, "--numeric-owner", "-cf", "-", "."], {
    maxOutputBytes: 64 << 20,
  });
  const command = ["vm_files", volume.name, readlinkSync(join(dir, "..data"))].map(quote).join(" ");
  return `printf %s ${quote(stdout.toString("base64"))} | ${command}`;
}

/** @throws Error, for the pod's author, when it is no regular file or has more than `maxBytes` */
export async function readGuestFile(
  ask: (command: GuestCommand) => Promise<string>,
  { volume, path, maxBytes }: { volume: string; path: string; maxBytes: number },
): Promise<Buffer> {
  const bytes = Buffer.from(await ask(["read", volume, path, String(maxBytes + 1)]), "base64");
  if (bytes.length > maxBytes) throw new Error(`it has more than ${maxBytes} bytes`);
  return bytes;
}
