/**
 * The state folder of a guest that has pulled images already. No two pulls leave the same bytes (containerd's tables
 * have times), so what was pulled once is kept: the same names give the same image, until it is asked for again.
 */
import { mkdir, mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join, relative } from "node:path";
import { parseBackendConfig } from "../../providers/local/config.ts";
import { pullImagesAhead } from "../../providers/local/engines/cri/images-ahead.ts";
import { findTool, run } from "../../providers/local/host/command.ts";
import { ConfigError } from "../config/load.ts";
import type { RegistryAuth } from "../provider/machine.ts";
import { createLogger } from "../telemetry/logger.ts";
import { systemClock } from "../util/clock.ts";
import { fingerprintOf } from "./file-hash.ts";
import { keptFile } from "./kept-file.ts";

export interface Prewarmed {
  /** As a container names them. */
  readonly images: readonly string[];
  readonly auth: readonly RegistryAuth[];
}

interface FolderOptions {
  readonly guestConfig: string;
  readonly cacheFolder?: string | undefined;
  readonly isFresh?: boolean | undefined;
  readonly signal: AbortSignal;
}

/** Of tar: the same files give the same archive. */
export const SAME_BYTES = ["--sort=name", "--mtime=@0", "--numeric-owner", "--format=gnu"];
/** What is unpacked of images has capabilities of programs, and marks of an overlay. */
export const WITH_ATTRIBUTES = ["--xattrs", "--xattrs-include=*", "--numeric-owner"];
/** Headers that have them, without the times and the process that they have otherwise. */
export const ATTRIBUTE_HEADERS = [
  "--format=pax",
  "--pax-option=exthdr.name=%d/PaxHeaders/%f,delete=atime,delete=ctime",
];
/** Each is as large as its images. */
const KEPT = 3;

/** @returns a tar of it. @throws ConfigError, ContainerError for an image that cannot be had */
export async function prewarmedFolder(
  { images, auth }: Prewarmed,
  { guestConfig, cacheFolder, isFresh, signal }: FolderOptions,
): Promise<string> {
  const { stateDir, engine } = parseBackendConfig(guestConfig, "the guest's configuration");
  if (engine.type !== "cri" || engine.socket !== undefined)
    throw new ConfigError(
      "--prewarm: only engine cri with a containerd of its own has images from the start, and the guest's configuration names another",
    );
  const { network, images: limits } = engine;
  const madeOf = [images, auth, guestConfig, await fingerprintOf(findTool("containerd")!)];
  const options = { folder: cacheFolder, isFresh, atMost: KEPT };
  return await keptFile("cloud-prewarmed", madeOf, options, async (draft) => {
    const root = await mkdtemp(join(tmpdir(), "vmlet-prewarm-"));
    const place = join(root, stateDir);
    const logger = createLogger({ level: "warn" });
    try {
      await mkdir(place, { recursive: true, mode: 0o700 });
      await pullImagesAhead(images, { stateDir: place, network, limits, auth, clock: systemClock, logger, signal });
      // Registries may have given them to their caller alone, and this host has other users.
      await writeFile(draft, "", { mode: 0o600 });
      const what = ["-cf", draft, "-C", root, relative("/", stateDir)];
      await run("tar", [...SAME_BYTES, ...WITH_ATTRIBUTES, ...ATTRIBUTE_HEADERS, ...what], { signal });
    } finally {
      await rm(root, { recursive: true, force: true });
    }
  });
}
