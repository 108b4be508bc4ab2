/** What the owner of a host allows of pulls: from where, how much of one image, how many at a time. */
import { goArchitecture } from "../../../src/provider/kit/index.ts";
import { Destinations } from "./destinations.ts";
import { Registry } from "./registry.ts";

/** Where a backend's own client pulls images from, and how much one of them may be. */
export interface PullLimits {
  /** Registries (`host:port`) without TLS, or with a certificate that no CA of this host vouches for. */
  insecureRegistries?: readonly string[] | undefined;
  /** Registries at addresses that images are otherwise not pulled from. */
  localRegistries?: readonly string[] | undefined;
  /** Ranges of addresses that images are not pulled from, beside those of `Destinations`. */
  refusedRanges?: readonly string[] | undefined;
  /** Pulls of one tenant at a time; of all, twice as many. */
  parallelPulls?: number | undefined;
  /** Limit on the sum of an image's compressed layers. */
  maxImageBytes?: number | undefined;
  /** Limit on what an image takes when unpacked. */
  maxUnpackedBytes?: number | undefined;
  /** Limit on the files of an unpacked image. */
  maxUnpackedFiles?: number | undefined;
  pullTimeoutMs?: number | undefined;
}

const GIB = 1024 ** 3;

/** What an owner who says nothing allows. */
export function withDefaults(given: PullLimits) {
  return {
    parallelPulls: given.parallelPulls ?? 2,
    pullTimeoutMs: given.pullTimeoutMs ?? 30 * 60_000,
    maxImageBytes: given.maxImageBytes ?? 20 * GIB,
    unpacked: {
      bytes: given.maxUnpackedBytes ?? 50 * GIB,
      inodes: given.maxUnpackedFiles ?? 2_000_000,
    },
  };
}

/** The registries that an owner allows, for images of this host's kind. */
export function allowedRegistries(given: PullLimits): Registry {
  return new Registry({
    destinations: new Destinations({
      named: given.localRegistries ?? [],
      plain: given.insecureRegistries ?? [],
      refused: given.refusedRanges ?? [],
    }),
    platform: { os: "linux", architecture: goArchitecture(process.arch) },
    maxLayerBytes: withDefaults(given).maxImageBytes,
  });
}
