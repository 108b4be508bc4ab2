/** Durations as Go and Kubernetes configuration write them: `10m`, `1h30m`, `300ms`, `1.5s`. */
import {
  millisecondsInHour,
  millisecondsInMinute,
  millisecondsInSecond,
  minutesInHour,
  secondsInMinute,
} from "date-fns/constants";
import { secondsToHours } from "date-fns/secondsToHours";
import { secondsToMinutes } from "date-fns/secondsToMinutes";
import { VmletError } from "../util/errors.ts";
import { trimEnd } from "../util/text.ts";

const UNIT_MS: Readonly<Record<string, number>> = {
  ns: 1e-6,
  us: 1e-3,
  µs: 1e-3,
  μs: 1e-3,
  ms: 1,
  s: millisecondsInSecond,
  m: millisecondsInMinute,
  h: millisecondsInHour,
};

/** One number with its unit, where the one before it ended. */
const AMOUNT = /(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h)/gy;

/** @internal */
export class DurationError extends VmletError {
  readonly code = "INVALID_DURATION";
}

/**
 * Milliseconds of a duration text, as Go's `time.ParseDuration` reads it: a sequence of decimal numbers, each with a
 * unit; a bare `0` needs none. A sign in front applies to the whole.
 * @throws DurationError that names the text
 */
export function parseDuration(text: string): number {
  const magnitude = text.replace(/^[+-]/, "");
  if (magnitude === "0") return 0;
  let total = 0;
  let read = 0;
  for (const [part, amount = "", unit = ""] of magnitude.matchAll(AMOUNT)) {
    total += Number(amount) * (UNIT_MS[unit] ?? 0);
    read += part.length;
  }
  if (magnitude === "" || read < magnitude.length) {
    throw new DurationError(
      `"${text.slice(0, 64)}" is not a duration: expected numbers with the units ns us ms s m h, such as 30s or 1h30m`,
    );
  }
  return text.startsWith("-") ? -total : total;
}

/** The text that Go's `Duration.String` gives: `1h30m0s`, `2m3s`, `1.5s`, `300ms`, `0s`. */
export function formatDuration(ms: number): string {
  const sign = ms < 0 ? "-" : "";
  const magnitude = Math.abs(ms);
  if (magnitude === 0) return "0s";
  if (magnitude < 1e-3) return `${sign}${trimNumber(magnitude * 1e6, 0)}ns`;
  if (magnitude < 1) return `${sign}${trimNumber(magnitude * 1e3, 3)}µs`;
  if (magnitude < 1000) return `${sign}${trimNumber(magnitude, 6)}ms`;
  const totalSeconds = magnitude / millisecondsInSecond;
  const hours = secondsToHours(totalSeconds);
  const minutes = secondsToMinutes(totalSeconds) % minutesInHour;
  const seconds = trimNumber(totalSeconds % secondsInMinute, 9);
  if (hours > 0) return `${sign}${hours}h${minutes}m${seconds}s`;
  if (minutes > 0) return `${sign}${minutes}m${seconds}s`;
  return `${sign}${seconds}s`;
}

function trimNumber(value: number, decimals: number): string {
  const text = value.toFixed(decimals);
  return text.includes(".") ? trimEnd(trimEnd(text, "0"), ".") : text;
}
