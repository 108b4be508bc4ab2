/** The nodes and machines of a cluster, read once, for the commands that list them. */
import { isForbidden, isNotFound } from "../kube/errors.ts";
import type { Kube } from "../kube/kube.ts";
import { nodesPath, podPath, resourcePath } from "../kube/paths.ts";
import type { Node, Pod } from "../kube/wire.ts";
import { isVmletNode, podRow, type PodRow } from "../ui/rows.ts";
import { VmletError } from "../util/errors.ts";

const PAGE = 500;

class NoSuchMachineError extends VmletError {
  readonly code = "NO_SUCH_MACHINE";
}

/** What of a pod its row does not have, and selectors need. */
interface Machine {
  pod: Pod;
  row: PodRow;
}

/** All pages of a list. @throws KubeApiError */
export async function listAll<T>(
  kube: Pick<Kube, "request">,
  path: string,
  query: Record<string, string | undefined>,
  signal: AbortSignal,
): Promise<T[]> {
  const items: T[] = [];
  let token: string | undefined;
  do {
    const page = await kube.request<{ items?: T[] | null; metadata?: { continue?: string } }>({
      method: "GET",
      path,
      query: { ...query, limit: PAGE, continue: token },
      signal,
    });
    for (const item of page.items ?? []) items.push(item);
    token = page.metadata?.continue || undefined;
  } while (token !== undefined);
  return items;
}

/** The nodes of vmlet agents; undefined where Nodes may not be read. @throws KubeApiError */
export async function vmletNodes(kube: Pick<Kube, "request">, signal: AbortSignal): Promise<Node[] | undefined> {
  try {
    return (await listAll<Node>(kube, nodesPath(), {}, signal)).filter(isVmletNode);
  } catch (thrown) {
    if (isForbidden(thrown)) return undefined;
    throw thrown;
  }
}

/**
 * Pods on vmlet nodes, and those that carry a machine's name; ordered by namespace and name.
 *
 * @param namespace undefined for all
 * @throws KubeApiError
 */
export async function machinesOf(
  kube: Pick<Kube, "request">,
  { namespace, selector }: { namespace: string | undefined; selector?: string | undefined },
  signal: AbortSignal,
): Promise<Machine[]> {
  const names = new Set((await vmletNodes(kube, signal))?.map(({ metadata }) => metadata?.name));
  const path = resourcePath({ resource: "pods", ...(namespace !== undefined && { namespace }) });
  const pods = await listAll<Pod>(kube, path, { labelSelector: selector }, signal);
  return pods.map((pod) => ({ pod, row: podRow(pod) })).filter(({ row }) => row.machine !== "" || names.has(row.node));
}

/**
 * The pod that is called so, or whose machine is: `NAME`, `NAMESPACE/NAME` or a machine's id.
 *
 * @throws NoSuchMachineError, KubeApiError
 */
export async function findMachine(
  kube: Pick<Kube, "request">,
  name: string,
  { namespace }: { namespace: string | undefined },
  signal: AbortSignal,
): Promise<Pod> {
  const [first, second] = name.split("/");
  const [inNamespace, podName] = second === undefined ? [namespace ?? "default", first!] : [first!, second];
  try {
    return await kube.request<Pod>({ method: "GET", path: podPath(inNamespace, podName), signal });
  } catch (thrown) {
    if (!isNotFound(thrown)) throw thrown;
  }
  const found = (await machinesOf(kube, { namespace }, signal)).find(({ row }) => row.machine === name);
  if (found !== undefined) return found.pod;
  throw new NoSuchMachineError(
    `there is no pod ${inNamespace}/${podName}, and no pod ${namespace === undefined ? "" : `in namespace ${namespace} `}` +
      `has a machine ${name}: kubectl vmlet machines -A lists those that there are`,
  );
}
