/**
 * What DRA drivers say of the health of their devices (dra-health v1), as a kubelet keeps it (cm/dra/healthinfo.go): by
 * driver, pool and device, and of no use any more when it was not said again in time. Nothing of it is written down:
 * drivers say it all again.
 */
import type { Clock } from "../../../src/provider/kit/index.ts";
import type { DeviceHealth } from "../devices.ts";
import type { DeviceHealth as Told, NodeWatchResourcesResponse } from "./api/dra-health/api.gen.js";

/** Of one driver; more are not remembered (kubelet: maxDevicesPerDriver). */
const MAX_DEVICES = 16_384;
/** kubelet: DefaultHealthTimeout. */
const DEFAULT_MS = 30_000;
/** One that is to be believed for longer is asked for again before. */
const LONGEST_MS = 24 * 3_600_000;
/** By the numbers of HealthStatus; what is not among them is unknown. */
const HEALTH: readonly DeviceHealth[] = ["unknown", "healthy", "unhealthy"];

interface Known {
  health: DeviceHealth;
  /** Monotonic milliseconds. */
  until: number;
}

export type HealthReport = Pick<NodeWatchResourcesResponse, "devices">;

export class ClaimHealth {
  readonly #clock: Clock;
  readonly #drivers = new Map<string, Map<string, Known>>();

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /** All of the driver's devices; what it does not name is known until its time is over. */
  take(driver: string, { devices }: HealthReport): void {
    const known = this.#drivers.get(driver) ?? new Map<string, Known>();
    this.#drivers.set(driver, known);
    const now = this.#clock.monotonic();
    for (const { device, health, healthCheckTimeoutSeconds } of devices) {
      if (device === undefined) continue;
      const key = keyOf(device.poolName, device.deviceName);
      if (known.size >= MAX_DEVICES && !known.has(key)) continue;
      known.set(key, { health: HEALTH[health] ?? "unknown", until: now + spanOf(healthCheckTimeoutSeconds) });
    }
  }

  of(driver: string, pool: string, device: string): DeviceHealth {
    const known = this.#drivers.get(driver)?.get(keyOf(pool, device));
    return known === undefined || known.until < this.#clock.monotonic() ? "unknown" : known.health;
  }

  /** A driver that has no plugin any more says nothing. */
  forget(driver: string): void {
    this.#drivers.delete(driver);
  }
}

const keyOf = (pool: string, device: string): string => JSON.stringify([pool, device]);

function spanOf(seconds: Told["healthCheckTimeoutSeconds"]): number {
  return seconds <= 0n ? DEFAULT_MS : Math.min(Number(seconds) * 1000, LONGEST_MS);
}
