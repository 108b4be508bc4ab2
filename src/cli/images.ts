/** `vmlet images`: which images a backend keeps ready. */
import { createHash } from "node:crypto";
import { Command, Option } from "commander";
import { matchingCredentials, parseReference } from "../../providers/local/images/reference.ts";
import { ConfigError } from "../config/load.ts";
import type { ImageProvider, PrewarmedImage } from "../provider/image.ts";
import type { RegistryAuth } from "../provider/machine.ts";
import { clusterPrefix, LABEL_CLUSTER } from "../provider/owner.ts";
import { type Clock, systemClock } from "../util/clock.ts";
import { VmletError } from "../util/errors.ts";
import { printable } from "../streaming/plain-text.ts";
import { readAuthFile } from "./auth-file.ts";
import { type BackendClientFlags, openBackend, withCredentialOptions } from "./backend-client.ts";
import { signalToStop } from "./exit.ts";
import { formatBytes } from "./sizes.ts";
import { listText, type OutputOptions, withOutputOption } from "./table.ts";

interface BackendFlags extends BackendClientFlags {
  clusterId?: string | undefined;
}

type PullFlags = BackendFlags & { authFile?: string | undefined; wait: boolean; timeout: number };

const POLL_MS = 500;

export function imagesCommand(): Command {
  const command = new Command("images").description(
    "images that a backend keeps ready: pulled before a machine asks for them, and not removed to free disk",
  );
  command.addCommand(
    withOutputOption(withBackend(new Command("list").description("list them"))).action(
      async (flags: BackendFlags & OutputOptions) => {
        await withImages(flags, async (images, labels, signal) => {
          process.stdout.write(imagesText(await images.list({ labels, signal }), flags));
        });
      },
    ),
  );
  command.addCommand(
    withBackend(new Command("pull").description("pull images, and keep them until they are removed"))
      .argument("<image...>", "as a container names them")
      .option("--auth-file <file>", "credentials of registries, as docker's config.json; not kept by the backend")
      .option("--no-wait", "do not wait until they are here")
      .addOption(
        new Option("--timeout <seconds>", "how long to wait for all of them").argParser(Number).default(600, "600"),
      )
      .action(pull),
  );
  command.addCommand(
    withBackend(new Command("remove").description("keep images no longer"))
      .argument("<image...>", "as they were pulled, or their ids in the list")
      .action(async (names: string[], flags: BackendFlags) => {
        await withImages(flags, async (images, labels, signal) => {
          await removeImages(images, names, { labels, signal });
        });
      }),
  );
  return command;
}

function withBackend(command: Command): Command {
  return withCredentialOptions(
    command
      .option("--backend <url>", "its Machine API: https://host:port, http:// on loopback, or unix:///path")
      .option("--cluster-id <id>", "only this cluster's, as its agents have it (clusterId)"),
  );
}

async function withImages(
  flags: BackendFlags,
  work: (images: ImageProvider, labels: Record<string, string>, signal: AbortSignal) => Promise<void>,
): Promise<void> {
  const { clusterId } = flags;
  const provider = await openBackend(flags, "the Machine API");
  const labels = clusterId === undefined ? {} : { [LABEL_CLUSTER]: clusterPrefix(clusterId) };
  const signal = signalToStop();
  try {
    await work(provider.images, labels, signal);
  } catch (thrown) {
    if (!signal.aborted) throw thrown;
    // Its images may not be here: a script must not go on as if they were.
    process.exitCode = 130;
  } finally {
    await provider.close();
  }
}

async function pull(names: string[], flags: PullFlags): Promise<void> {
  const auth = flags.authFile === undefined ? [] : readAuthFile(flags.authFile);
  if (!(flags.timeout > 0)) throw new ConfigError("--timeout must be a number of seconds");
  await withImages(flags, async (images, labels, signal) => {
    const tell = (line: string) => process.stdout.write(`${printable(line)}\n`);
    const waitMs = flags.wait ? flags.timeout * 1000 : 0;
    await pullImages(images, names, { labels, auth, waitMs, clock: systemClock, tell, signal });
  });
}

/** Images could not be had. */
class ImagesError extends VmletError {
  readonly code = "IMAGES";
}

interface Pulling {
  labels: Record<string, string>;
  auth: readonly RegistryAuth[];
  /** 0: they are asked for, and no more. */
  waitMs: number;
  clock: Clock;
  tell: (line: string) => void;
  signal: AbortSignal;
}

/**
 * The same for the same image of the same cluster, so that asking again keeps no second one.
 * @internal
 */
export function imageIdOf(image: string, labels: Record<string, string>): string {
  const text = JSON.stringify([image, Object.entries(labels).toSorted(([a], [b]) => (a < b ? -1 : 1))]);
  return `image-${createHash("sha256").update(text).digest("hex").slice(0, 16)}`;
}

/** @throws ImagesError when some are not here in time, ProviderError @internal */
export async function pullImages(
  images: ImageProvider,
  names: readonly string[],
  { labels, auth, waitMs, clock, tell, signal }: Pulling,
): Promise<void> {
  const deadline = clock.monotonic() + waitMs;
  const shown = new Map<string, string>();
  let waiting: PrewarmedImage[] = [];
  const look = (image: PrewarmedImage) => {
    const line = lineOf(image);
    if (shown.get(image.id) !== line) tell(line);
    shown.set(image.id, line);
    if (image.state !== "ready") waiting.push(image);
  };
  for (const image of new Set(names)) {
    const own = credentialsFor(image, auth);
    const spec = { image, labels, ...(own.length > 0 && { registry_auth: own }) };
    look(await images.create(imageIdOf(image, labels), spec, { signal }));
  }
  while (waiting.length > 0 && clock.monotonic() < deadline) {
    await clock.sleep(POLL_MS, signal);
    const asked = waiting;
    waiting = [];
    for (const { id } of asked) look(await images.get(id, { signal }));
  }
  if (waiting.length === 0 || waitMs === 0) return;
  const list = waiting.map(({ image }) => image).join(", ");
  throw new ImagesError(
    `not here within ${waitMs / 1000} s: ${list}. The backend goes on trying; vmlet images list shows how far it is`,
  );
}

/** Of the file's credentials those for the image's registry: the others are nothing to the backend. */
function credentialsFor(image: string, auth: readonly RegistryAuth[]): RegistryAuth[] {
  try {
    return matchingCredentials(parseReference(image), auth);
  } catch {
    // The backend says what is wrong with the name.
    return [];
  }
}

function lineOf({ image, state, reason, message, size_bytes: bytes }: PrewarmedImage): string {
  if (state === "ready") return `${image}: ready${bytes === undefined ? "" : `, ${formatBytes(bytes)}`}`;
  return state === "pulling" ? `${image}: pulling` : `${image}: ${reason ?? "waiting"}: ${message ?? ""}`;
}

/** @param names images or ids @throws ImagesError for what is not kept, ProviderError @internal */
export async function removeImages(
  images: ImageProvider,
  names: readonly string[],
  { labels, signal }: { labels: Record<string, string>; signal: AbortSignal },
): Promise<void> {
  const all = await images.list({ labels, signal });
  const meant = (name: string) => all.filter(({ id, image }) => id === name || image === name);
  const unknown = names.filter((name) => meant(name).length === 0);
  if (unknown.length > 0) throw new ImagesError(`not kept: ${unknown.join(", ")}`);
  for (const id of new Set(names.flatMap((name) => meant(name).map((each) => each.id))))
    await images.delete(id, { signal });
}

/** @internal */
export function imagesText(images: readonly PrewarmedImage[], { output }: OutputOptions): string {
  return listText(images, {
    kind: "ImageList",
    output,
    empty: "No images are kept ready: vmlet images pull IMAGE.",
    columns: [
      { title: "IMAGE", cell: ({ image }) => image },
      { title: "STATE", cell: ({ state, reason }) => (state === "waiting" ? (reason ?? state) : state) },
      { title: "SIZE", cell: ({ size_bytes: bytes }) => (bytes === undefined ? "" : formatBytes(bytes)) },
      { title: "ID", cell: ({ id }) => id },
      { title: "IMAGE ID", cell: ({ image_id: id }) => id ?? "", isWide: true },
      { title: "MESSAGE", cell: ({ message }) => message ?? "", isWide: true },
    ],
  });
}
