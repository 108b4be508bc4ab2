/** Containers that the runtime has of instances before one that is to be made. */
import { ContainerState } from "./api.gen.js";
import { type CriClient, unlessGone } from "./client.ts";
import type { ContainerLaunch } from "../../engine.ts";

/**
 * Removes those whose end has been told, and what calls that were cut short have left of this attempt, as the runtime
 * keeps its name for that. Each try of an attempt is an instance of its own; none of them has begun, or the next would
 * be another attempt.
 * @param labelSelector of the machine's container of this name
 */
export async function removeFormer(
  client: Pick<CriClient, "runtime" | "within">,
  labelSelector: Record<string, string>,
  { attempt }: Pick<ContainerLaunch, "attempt">,
  within: ReturnType<CriClient["within"]>,
): Promise<void> {
  const { containers } = await client.runtime.listContainers({ filter: { labelSelector } }, within);
  for (const { id, state, metadata } of containers) {
    const isUnused =
      state === ContainerState.CONTAINER_EXITED ||
      // A runtime that was killed as it made one knows no more of it.
      (metadata?.attempt === attempt &&
        (state === ContainerState.CONTAINER_CREATED || state === ContainerState.CONTAINER_UNKNOWN));
    if (isUnused) await unlessGone(client.runtime.removeContainer({ containerId: id }, client.within()));
  }
}
