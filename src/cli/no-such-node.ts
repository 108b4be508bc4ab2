/** The commands that are given names of Nodes, which may be misspelt. */
import { isForbidden, isNotFound } from "../kube/errors.ts";
import type { Kube } from "../kube/kube.ts";
import { nodePath } from "../kube/paths.ts";
import { VmletError } from "../util/errors.ts";

/** There is no Node of the name that a command was given. */
export class NoSuchNodeError extends VmletError {
  readonly code = "NO_SUCH_NODE";

  constructor(node: string) {
    super(`there is no Node ${node}: kubectl get nodes lists those that there are`);
  }
}

/** Resolves as well where Nodes may not be read. @throws NoSuchNodeError, KubeApiError */
export async function requireNode(kube: Pick<Kube, "request">, node: string, signal: AbortSignal): Promise<void> {
  try {
    await kube.request({ method: "GET", path: nodePath(node), signal });
  } catch (thrown) {
    if (isNotFound(thrown)) throw new NoSuchNodeError(node);
    if (!isForbidden(thrown)) throw thrown;
  }
}
