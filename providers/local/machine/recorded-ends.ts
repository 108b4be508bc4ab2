/** What is known of containers whose sandbox is gone. */
import type { ContainerTermination } from "../../../src/provider/kit/index.ts";
import type { Shims } from "../engine.ts";
import { recordedTermination } from "./container-instance.ts";
import type { ContainerStatus } from "./container-status.ts";
import type { InstanceFolders } from "./instance-folders.ts";
import type { MachineState } from "./machine-state.ts";

/**
 * Of the containers that are shown to run, those whose keepers have written down how they ended.
 * @throws what the system says when that cannot be read just now
 */
export function recordedEnds(
  state: MachineState,
  folders: InstanceFolders,
  shims: Shims,
): { container: ContainerStatus; termination: ContainerTermination }[] {
  return state.containers().flatMap((container) => {
    const ref = container.isUp ? folders.newest(container.name, container.own) : undefined;
    const exit = ref && shims.recorded?.(ref);
    return ref === undefined || exit === undefined ? [] : [{ container, termination: recordedTermination(ref, exit) }];
  });
}
