export interface LinkedSignal {
  readonly signal: AbortSignal;
  /** Lets go of the sources; must be called when the signal is not needed any more. */
  release(): void;
}

/**
 * A signal that aborts with the first of `sources`, for work that is shorter than they are. AbortSignal.any does the same, but
 * leaves some 600 bytes in each source for every signal that it made (Node 24), which a source that lives as long as the
 * process never gives back.
 */
export function linkAbort(...sources: readonly AbortSignal[]): LinkedSignal {
  const controller = new AbortController();
  const release = () => {
    for (const source of sources) source.removeEventListener("abort", onAbort);
  };
  const onAbort = () => {
    controller.abort(sources.find((source) => source.aborted)!.reason);
    release();
  };
  for (const source of sources) source.addEventListener("abort", onAbort);
  if (sources.some((source) => source.aborted)) onAbort();
  return { signal: controller.signal, release };
}
