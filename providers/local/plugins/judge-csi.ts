/** What is believed of what a CSI driver says: pure. As of other plugins, what the cluster would refuse is not told. */
import { isLabelValue, isQualifiedName } from "../../../src/provider/kit/index.ts";
import type { CsiPlugin } from "./csi-plugin.ts";
import type { CsiDriverInfo } from "./csi-manager.ts";
import { isDriverName } from "./judge.ts";

/** Of volumes of this backend's own: no plugin may answer for them. */
const OWN_DOMAIN = "vmlet.dev";
/** Of a CSINode's field. */
const MAX_NODE_ID_CHARS = 256;
const MAX_SEGMENTS = 32;
/** Control characters, which no id has. */
const CONTROL = /[\p{Cc}]/u;

/** @throws Error in a kubelet's words */
export function assertCsiPlugin(name: string, endpoint: string, versions: readonly string[]): void {
  const refuse = (why: string): never => {
    throw new Error(`validation failed for CSI Driver ${name} at endpoint ${endpoint}: ${why}`);
  };
  // Kubernetes compares them as they are written, and judges them in small letters.
  if (!isDriverName(name.toLowerCase())) refuse(`${JSON.stringify(name)} is no name of a CSI driver`);
  if (`.${name.toLowerCase()}`.endsWith(`.${OWN_DOMAIN}`)) refuse(`${name} is a name of vmlet's own`);
  if (!endpoint.startsWith("/") || endpoint.split("/").includes("..") || CONTROL.test(endpoint))
    refuse("the endpoint is no absolute path of a socket");
  if (versions.length === 0) refuse("Plugin returned an empty list for supported versions");
  // Those of 1.x are compatible with each other; there is no other that is in use.
  if (!versions.some((version) => /^v?1(?:\.\d+){0,2}$/.test(version)))
    refuse(`None of the versions specified ${JSON.stringify(versions)} are supported`);
}

/** @throws Error that says what of it cannot be told */
export function judgeNodeInfo(name: string, told: Awaited<ReturnType<CsiPlugin["info"]>>): CsiDriverInfo {
  const { nodeId, maxVolumesPerNode, accessibleTopology } = told;
  if (nodeId === "") throw new Error("error adding CSI driver node info: driverNodeID must not be empty");
  if (nodeId.length > MAX_NODE_ID_CHARS || CONTROL.test(nodeId))
    throw new Error(
      `error adding CSI driver node info: the node id has control characters, or above ${MAX_NODE_ID_CHARS}`,
    );
  const topology = { ...accessibleTopology?.segments };
  const segments = Object.entries(topology);
  if (segments.length > MAX_SEGMENTS)
    throw new Error(`error adding CSI driver node info: ${segments.length} topology segments, above ${MAX_SEGMENTS}`);
  for (const [key, value] of segments)
    if (!isQualifiedName(key) || !isLabelValue(value))
      throw new Error(`error adding CSI driver node info: ${JSON.stringify(`${key}=${value}`)} is no label`);
  return {
    name,
    node_id: nodeId,
    ...(segments.length > 0 && { topology }),
    // As a kubelet: none, and nonsense, are no limit.
    ...(maxVolumesPerNode > 0n && { max_volumes: Math.min(Number(maxVolumesPerNode), 2 ** 31 - 1) }),
  };
}
