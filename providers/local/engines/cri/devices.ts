/** Devices of this host, by their names in the Container Device Interface: those that its owner gives to machines. */
import { containersOf, type MachineSpec, ProviderError } from "../../../../src/provider/kit/index.ts";

/** As the Machine API has them, or with `*` in place of the device. */
const PATTERN = /^[a-zA-Z][-_.a-zA-Z0-9]*\/[a-zA-Z][-_a-zA-Z0-9]*=(?:\*|[a-zA-Z0-9][-_.:a-zA-Z0-9]*\*?)$/;

/** @throws Error for what can be the name of no device */
export function requireDevicePattern(text: string): void {
  if (!PATTERN.test(text)) throw new Error(`${text} names no CDI device`);
}

/** @throws ProviderError unsupported, with the field, for a device that no machine may have */
export function requireDevices(spec: MachineSpec, allowed: readonly string[]): void {
  for (const { spec: container } of containersOf(spec))
    for (const device of container.cdi_devices ?? [])
      if (!allowed.some((pattern) => matches(pattern, device)))
        throw new ProviderError(
          "unsupported",
          `container ${container.name}: engine.cdiDevices has no ${device}: no machine is given this device`,
          { field: "containers.cdi_devices" },
        );
}

function matches(pattern: string, device: string): boolean {
  return pattern.endsWith("*") ? device.startsWith(pattern.slice(0, -1)) : device === pattern;
}
