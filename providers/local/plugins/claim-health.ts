/**
 * What DRA drivers say of the health of their devices (dra-health v1 and v1alpha1), as a kubelet keeps it
 * (cm/dra/healthinfo.go): by driver, pool and device, and of no use any more when it was not said again in time.
 * Nothing of it is written down: drivers say it all again.
 */
import type { Clock } from "../../../src/provider/kit/index.ts";
import type { ToldHealth } from "../claims.ts";
import type { DeviceHealth } from "../devices.ts";
import type { DeviceHealth as Told, DeviceIdentifier } from "./api/dra-health/api.gen.js";

/** Of one driver; more are not remembered (kubelet: maxDevicesPerDriver). */
const MAX_DEVICES = 16_384;
/** kubelet: DefaultHealthTimeout. */
const DEFAULT_MS = 30_000;
/** One that is to be believed for longer is asked for again before. */
const LONGEST_MS = 24 * 3_600_000;
/** By the numbers of HealthStatus; what is not among them is unknown. */
const HEALTH: readonly DeviceHealth[] = ["unknown", "healthy", "unhealthy"];

/** v1.ResourceHealthMessageMaxLength. */
const MAX_MESSAGE_CHARS = 1024;

interface Known extends ToldHealth {
  /** Monotonic milliseconds. */
  until: number;
}

/** The same of each version of the API. */
export interface HealthReport {
  devices: readonly (Pick<Told, "health" | "healthCheckTimeoutSeconds" | "message"> & {
    device?: Pick<DeviceIdentifier, "poolName" | "deviceName"> | undefined;
  })[];
}

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
    for (const { device, health, healthCheckTimeoutSeconds, message } of devices) {
      if (device === undefined) continue;
      const key = keyOf(device.poolName, device.deviceName);
      if (known.size >= MAX_DEVICES && !known.has(key)) continue;
      known.set(key, {
        health: HEALTH[health] ?? "unknown",
        ...(message !== "" && { message: shortened(message) }),
        until: now + spanOf(healthCheckTimeoutSeconds),
      });
    }
  }

  of(driver: string, pool: string, device: string): ToldHealth {
    const known = this.#drivers.get(driver)?.get(keyOf(pool, device));
    if (known === undefined || known.until < this.#clock.monotonic()) return { health: "unknown" };
    const { until: _until, ...told } = known;
    return told;
  }

  /** A driver that has no plugin any more says nothing. */
  forget(driver: string): void {
    this.#drivers.delete(driver);
  }
}

/** kubelet: cm/dra/manager.go, truncateHealthMessage. */
const shortened = (message: string): string =>
  message.length <= MAX_MESSAGE_CHARS ? message : `${message.slice(0, MAX_MESSAGE_CHARS - 3)}...`.toWellFormed();

const keyOf = (pool: string, device: string): string => JSON.stringify([pool, device]);

function spanOf(seconds: Told["healthCheckTimeoutSeconds"]): number {
  return seconds <= 0n ? DEFAULT_MS : Math.min(Number(seconds) * 1000, LONGEST_MS);
}
