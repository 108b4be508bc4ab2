/**
 * Pulls images into the state directory of a backend that has not begun yet: of a cloud's VMs, whose image is being
 * made. The first backend that begins there has them, as though it had pulled them itself, and the image of its
 * sandboxes as well.
 */
import { rm } from "node:fs/promises";
import { join } from "node:path";
import type { Clock, Logger, RegistryAuth } from "../../../../src/provider/kit/index.ts";
import type { PullLimits } from "../../images/pull-limits.ts";
import { type NetworkOptions, refusedRanges } from "../../network/network.ts";
import { CriClient } from "./client.ts";
import { CriImages } from "./images.ts";
import { OwnContainerd } from "./own-containerd.ts";

interface ImagesAheadOptions {
  /** The backend's. Nothing else may use it meanwhile. */
  stateDir: string;
  /** As the engine has them. */
  network?: Omit<NetworkOptions, "dir"> | undefined;
  limits?: PullLimits | undefined;
  auth: readonly RegistryAuth[];
  clock: Clock;
  logger: Logger;
  signal: AbortSignal;
}

/** It is never made. A backend of this host has another, and what CNI keeps goes by this name. */
const NO_BRIDGE = "vmletahead";
/** Of a containerd that has ended: its next start writes what it needs of them. */
const ONLY_OF_THIS_RUN = ["config.toml", "cni", "cni-leases", "registries", "pid", "containerd.log"];

/** @throws ContainerError for an image that cannot be had, Error when containerd does not start here */
export async function pullImagesAhead(names: readonly string[], options: ImagesAheadOptions): Promise<void> {
  const { stateDir, network = {}, limits, auth, clock, logger, signal } = options;
  const dir = join(stateDir, "cri");
  const own = new OwnContainerd({ dir, clock, bridge: NO_BRIDGE, range: () => undefined });
  const client = new CriClient(own.socket, clock);
  const images = new CriImages({
    dir: join(stateDir, "cri-images"),
    client,
    clock,
    logger,
    own: { refusedRanges: refusedRanges(network), ...limits, announce: (url) => own.pullFrom(url) },
    imageDir: () => Promise.resolve(stateDir),
  });
  try {
    await own.start(signal);
    for (const name of names) await images.pull(name, { auth, tenant: "", signal });
  } finally {
    await images.close();
    client.close();
    await own.retire();
    for (const name of ONLY_OF_THIS_RUN) await rm(join(dir, name), { recursive: true, force: true });
  }
}
