/**
 * What is believed of what a device plugin says: pure. A program that can make a socket in the plugins' folder owns
 * this host, so a plugin may give away any path of it; but what makes no sense, or is too much, no runtime is told.
 */
import type { PreparedDevice } from "../claims.ts";
import type { DeviceGrant } from "../devices.ts";
import type { ContainerAllocateResponse, ListAndWatchResponse } from "./api/device-plugin/api.gen.js";
import type { PrepareAnswer } from "./dra-plugin.ts";

/** What is known of one device. */
export interface PluginDevice {
  healthy: boolean;
  /** NUMA nodes that it is near to. */
  numa: readonly number[];
}

export const API_VERSION = "v1beta1";
const MAX_DEVICES = 10_000;
const MAX_ID_CHARS = 256;
const MAX_NUMA_NODES = 1024;
/** It is written with each change of the machine. */
const MAX_GRANT_BYTES = 64 * 1024;
const MAX_NAME_CHARS = 63;
const QUOTA_PREFIX = "requests.";
const DNS_NAME = /^[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?)*$/;
const NAME = /^[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$/;
const CDI_NAME = /^[a-zA-Z][-_.a-zA-Z0-9]*\/[a-zA-Z][-_a-zA-Z0-9]*=[a-zA-Z0-9][-_.:a-zA-Z0-9]*$/;
/** Control characters, which no id, path or name has. */
const CONTROL = /[\p{Cc}]/u;

/** Kubernetes' rule for names of extended resources (pkg/apis/core/v1/helper). */
export function isExtendedResource(name: string): boolean {
  const [domain = "", own, ...rest] = name.split("/");
  if (own === undefined || rest.length > 0 || name.includes("kubernetes.io/") || name.startsWith(QUOTA_PREFIX))
    return false;
  // As a quota has it, the domain is longer by this.
  const isDomain = DNS_NAME.test(domain) && domain.length + QUOTA_PREFIX.length <= 253;
  return isDomain && NAME.test(own) && own.length <= MAX_NAME_CHARS;
}

/** The devices that make sense, and what was wrong with the others. */
export function judgeDevices({ devices }: Pick<ListAndWatchResponse, "devices">): {
  devices: Map<string, PluginDevice>;
  faults: string[];
} {
  const known = new Map<string, PluginDevice>();
  const faults: string[] = [];
  if (devices.length > MAX_DEVICES) faults.push(`it has ${devices.length} devices: the first ${MAX_DEVICES} count`);
  for (const { ID: id, health, topology } of devices.slice(0, MAX_DEVICES)) {
    if (id === "" || id.length > MAX_ID_CHARS || CONTROL.test(id)) {
      faults.push(`${JSON.stringify(id.slice(0, MAX_ID_CHARS))} is the id of no device`);
      continue;
    }
    if (known.has(id)) faults.push(`${id} is named twice: it is one device`);
    const nodes = (topology?.nodes ?? []).map(({ ID }) => Number(ID));
    known.set(id, {
      // Of one that is named as healthy and as unhealthy, nobody is given it.
      healthy: health === "Healthy" && known.get(id)?.healthy !== false,
      numa: [...new Set(nodes.filter((node) => node >= 0 && node < MAX_NUMA_NODES))],
    });
  }
  return { devices: known, faults };
}

/** @throws Error that says what of it cannot be passed on to a container */
export function judgeGrant(response: ContainerAllocateResponse): DeviceGrant {
  const grant: DeviceGrant = {
    env: response.envs,
    mounts: response.mounts.map(({ containerPath, hostPath, readOnly }) => ({
      path: containerPath,
      hostPath,
      readOnly,
    })),
    nodes: response.devices.map(({ containerPath, hostPath, permissions }) => ({
      path: containerPath,
      hostPath,
      permissions: permissions === "" ? "rw" : permissions,
    })),
    annotations: response.annotations,
    cdi: response.cdiDevices.map(({ name }) => name),
  };
  const bytes = Buffer.byteLength(JSON.stringify(grant));
  if (bytes > MAX_GRANT_BYTES)
    throw new Error(`the plugin's answer has ${bytes} bytes: at most ${MAX_GRANT_BYTES} are taken`);
  for (const [name, value] of Object.entries(grant.env))
    if (name === "" || /[=\0]/.test(name) || value.includes("\0"))
      throw new Error(`the plugin gives ${JSON.stringify(name)}, which is no environment variable`);
  for (const { path, hostPath } of [...grant.mounts, ...grant.nodes])
    for (const each of [path, hostPath])
      if (!isPlainPath(each)) throw new Error(`the plugin gives ${JSON.stringify(each)}, which is no absolute path`);
  for (const { path, permissions } of grant.nodes)
    if (!/^[rwm]{1,3}$/.test(permissions))
      throw new Error(`the plugin gives ${path} with ${JSON.stringify(permissions)}: only r, w and m are permissions`);
  for (const name of grant.cdi)
    if (!CDI_NAME.test(name)) throw new Error(`the plugin gives ${JSON.stringify(name)}, which is no CDI device`);
  return grant;
}

/** Kubernetes' rule for names of drivers: a DNS subdomain, and short enough for its label. */
export function isDriverName(name: string): boolean {
  return DNS_NAME.test(name) && name.length <= MAX_NAME_CHARS;
}

/** @throws Error that says what of it cannot be passed on to a container */
export function judgePrepared({ devices }: Pick<PrepareAnswer, "devices">): PreparedDevice[] {
  const prepared = devices.map(({ requestNames, poolName, deviceName, cdiDeviceIds }) => ({
    pool: poolName,
    device: deviceName,
    requests: requestNames,
    cdi: cdiDeviceIds,
  }));
  const bytes = Buffer.byteLength(JSON.stringify(prepared));
  if (bytes > MAX_GRANT_BYTES)
    throw new Error(`the plugin's answer has ${bytes} bytes: at most ${MAX_GRANT_BYTES} are taken`);
  for (const name of prepared.flatMap(({ cdi }) => cdi))
    if (!CDI_NAME.test(name)) throw new Error(`the plugin gives ${JSON.stringify(name)}, which is no CDI device`);
  return prepared;
}

/** Absolute, below the root, without `..`. */
function isPlainPath(path: string): boolean {
  const parts = path.split("/").filter((part) => part !== "" && part !== ".");
  return path.startsWith("/") && parts.length > 0 && !parts.includes("..") && !CONTROL.test(path);
}
