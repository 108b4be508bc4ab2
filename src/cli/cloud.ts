/** `vmlet cloud`: what a cloud of VMs needs before nodes run their pods there. */
import { readFileSync } from "node:fs";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Command } from "commander";
import { loadBackendConfig } from "../../providers/local/config.ts";
import { ConfigError, loadConfig } from "../config/load.ts";
import type { CloudProviderConfig } from "../config/schema.ts";
import { readAuthFile } from "./auth-file.ts";
import { signalToStop } from "./exit.ts";
import { assertPrivate } from "./guest.ts";
import { fingerprintOf } from "./file-hash.ts";
import { buildGuestImage } from "./guest-image.ts";

interface ImageOptions {
  config?: string | undefined;
  node?: string | undefined;
  output?: string | undefined;
  file?: string | undefined;
  suite: string;
  guestConfig?: string | undefined;
  refresh?: boolean | undefined;
  prewarm?: string[] | undefined;
  authFile?: string | undefined;
}

export function cloudCommand(): Command {
  const command = new Command("cloud");
  command
    .command("image")
    .description("make the image of which VMs are, and bring it into the cloud; the same content is brought once")
    .option("-c, --config <file>", "the agent's configuration file: the image goes to the cloud of its node")
    .option("--node <name>", "whose cloud that is, where the file has several nodes with one")
    .option("-o, --output <file>", "keep the image in this file")
    .option("--file <file>", "bring this image, and make none")
    .option("--guest-config <file>", "the guest's configuration (kind: BackendConfig), in place of the usual one")
    .option("--suite <name>", "of Debian, whose packages it is made of", "bookworm")
    .option("--prewarm <image...>", "containers' images that every VM has from the start, as a container names them")
    .option("--auth-file <file>", "credentials of their registries, as docker's config.json; not kept in the image")
    .option("--refresh", "fetch the packages and images again, with what has been mended in them since")
    .action(image);
  return command;
}

async function image(options: ImageOptions): Promise<void> {
  const { config, node, output, file, suite, guestConfig, refresh, prewarm, authFile } = options;
  if (config === undefined && output === undefined)
    throw new ConfigError("give --config, to bring the image into a cloud, or --output, to keep it in a file");
  if (file !== undefined && prewarm !== undefined)
    throw new ConfigError("--prewarm: an image that is there (--file) is brought as it is");
  const auth = authFile === undefined ? [] : readAuthFile(authFile);
  const cloud = config === undefined ? undefined : cloudOf(config, node);
  const told = guestConfig === undefined ? undefined : guestConfigOf(guestConfig);
  const signal = signalToStop();
  const folder = await mkdtemp(join(tmpdir(), "vmlet-image-"));
  try {
    const made = output ?? join(folder, "image.tar");
    const fingerprint =
      file === undefined
        ? await buildGuestImage(made, {
            suite,
            isFresh: refresh,
            guestConfig: told,
            prewarm: prewarm && { images: prewarm, auth },
            signal,
          })
        : await fingerprintOf(file);
    if (cloud !== undefined) {
      const { bringImage } = await import("../../providers/cloud/incus/images.ts");
      const what = { file: file ?? made, fingerprint, alias: cloud.image };
      const wasNew = await bringImage(cloud, what, { signal });
      console.log(`${wasNew ? "Brought" : "It is there already, as"} ${cloud.image} in project ${cloud.project}`);
    }
    console.log(fingerprint);
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}

function guestConfigOf(path: string): string {
  assertPrivate(loadBackendConfig(path), path);
  return readFileSync(path, "utf8");
}

function cloudOf(path: string, name: string | undefined): CloudProviderConfig["cloud"] {
  const { nodes } = loadConfig(path, {});
  const found = nodes.flatMap((node) =>
    node.provider.type === "cloud" && (name === undefined || node.name === name) ? [node.provider.cloud] : [],
  );
  const [first, ...others] = found;
  if (first === undefined)
    throw new ConfigError(
      `${path}: ${name === undefined ? "no node" : `no node ${name}`} has a provider of type cloud`,
    );
  if (others.some((other) => JSON.stringify(other) !== JSON.stringify(first)))
    throw new ConfigError(`${path}: its nodes have several clouds: choose one with --node`);
  return first;
}
