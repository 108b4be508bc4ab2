/** Containers that the runtime has of instances before one that is to be made. */
import { ContainerState } from "./api.gen.js";
import { type CriClient, unlessGone } from "./client.ts";
import type { ContainerLaunch } from "../../engine.ts";
import { LABEL_INSTANCE } from "./labels.ts";

/**
 * Removes those whose end has been told, and what a call that was cut short has left of this one: the runtime keeps its
 * name for that.
 * @param labelSelector of the machine's container of this name
 */
export async function removeFormer(
  client: Pick<CriClient, "runtime" | "within">,
  labelSelector: Record<string, string>,
  { attempt, id: instance }: Pick<ContainerLaunch, "attempt" | "id">,
  within: ReturnType<CriClient["within"]>,
): Promise<void> {
  const { containers } = await client.runtime.listContainers({ filter: { labelSelector } }, within);
  for (const { id, state, metadata, labels } of containers) {
    const isUnused =
      state === ContainerState.CONTAINER_EXITED ||
      (state === ContainerState.CONTAINER_CREATED && metadata?.attempt === attempt) ||
      // A runtime that was killed as it made it knows no more of it: nobody has started what is to be launched.
      (state === ContainerState.CONTAINER_UNKNOWN && labels[LABEL_INSTANCE] === instance);
    if (isUnused) await unlessGone(client.runtime.removeContainer({ containerId: id }, client.within()));
  }
}
