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
