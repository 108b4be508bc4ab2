/** From a node's configuration to machines that are VMs of a cloud. */
import { readFileSync } from "node:fs";
import { GuestKeys } from "../../providers/cloud/guest-keys.ts";
import { IncusCloud } from "../../providers/cloud/incus/cloud.ts";
import { CloudProvider, type InstanceType } from "../../providers/cloud/index.ts";
import { CRI_CAPABILITIES } from "../../providers/local/engines/capabilities.ts";
import { ConfigError } from "../config/load.ts";
import type { CloudProviderConfig } from "../config/schema.ts";
import type { Capability } from "../provider/capabilities.ts";
import type { Provider } from "../provider/provider.ts";
import { Quantity } from "../resources/quantity.ts";
import type { Logger } from "../telemetry/logger.ts";
import type { Tracing } from "../telemetry/tracing.ts";
import type { Clock } from "../util/clock.ts";
import type { Random } from "../util/random.ts";
import { toError } from "../util/errors.ts";
import { VERSION } from "./version.ts";

const NANO = 1_000_000_000n;

/** @throws ConfigError when a file cannot be read */
export function createCloudProvider(
  config: Pick<CloudProviderConfig, "cloud" | "scope"> & Partial<CloudProviderConfig>,
  collaborators: { clock: Clock; random: Random; logger: Logger; tracing?: Tracing | undefined },
): Provider {
  const cloud = new IncusCloud({ ...config.cloud, clock: collaborators.clock });
  return new CloudProvider({
    cloud,
    scope: config.scope,
    types: (config.instanceTypes ?? []).map(instanceTypeOf),
    capabilities: capabilitiesOf(config),
    guestKeys: config.guestKeysFile === undefined ? undefined : guestKeysOf(config.guestKeysFile, config.scope),
    version: VERSION,
    ...collaborators,
  });
}

/** @throws ConfigError */
function guestKeysOf(file: string, scope: string): GuestKeys {
  const field = `guestKeysFile (${file})`;
  try {
    return new GuestKeys(readFileSync(file, "utf8"), { scope, field });
  } catch (thrown) {
    if (thrown instanceof ConfigError) throw thrown;
    throw new ConfigError(`${field}: ${toError(thrown).message}`, { cause: thrown });
  }
}

/**
 * Of the guest in the image that `vmlet cloud image` makes.
 * @internal
 */
export function capabilitiesOf({
  cloud,
  allowPrivileged = cloud.instanceType === "virtual-machine",
  services = false,
}: Pick<CloudProviderConfig, "cloud"> & Partial<CloudProviderConfig>): readonly Capability[] {
  return [
    ...CRI_CAPABILITIES,
    "supplemental_groups_policy",
    "volumes.host_path",
    ...(allowPrivileged ? (["privileged"] as const) : []),
    ...(services ? (["services"] as const) : []),
  ];
}

/** @internal */
export function instanceTypeOf(sold: CloudProviderConfig["instanceTypes"][number]): InstanceType {
  const { name, cpu, memory, ephemeralStorage, extended, price, zone, spot, warm } = sold;
  const whole = (text: string, factor = 1n) => Number((Quantity.tryParse(text)!.nano * factor) / NANO);
  return {
    name,
    resources: {
      ...(cpu !== undefined && { cpu_millis: whole(cpu, 1000n) }),
      ...(memory !== undefined && { memory_bytes: whole(memory) }),
      ...(ephemeralStorage !== undefined && { ephemeral_bytes: whole(ephemeralStorage) }),
      extended: Object.entries(extended).map(([resource, count]) => ({ name: resource, count })),
    },
    price,
    zone,
    spot,
    warm,
  };
}
