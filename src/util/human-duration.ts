import { millisecondsToSeconds } from "date-fns/millisecondsToSeconds";
import { minutesToHours } from "date-fns/minutesToHours";
import { secondsToMinutes } from "date-fns/secondsToMinutes";

/** `duration.HumanDuration` (apimachinery): two units at most, the coarser the longer. */
export function humanDuration(ms: number): string {
  const seconds = millisecondsToSeconds(ms);
  if (seconds < -1) return "<invalid>";
  if (seconds < 0) return "0s";
  if (seconds < 120) return `${seconds}s`;
  const pair = (large: number, unit: string, small: number, smallUnit: string) =>
    small === 0 ? `${large}${unit}` : `${large}${unit}${small}${smallUnit}`;
  const minutes = secondsToMinutes(seconds);
  if (minutes < 10) return pair(minutes, "m", seconds % 60, "s");
  if (minutes < 180) return `${minutes}m`;
  const hours = minutesToHours(minutes);
  if (hours < 8) return pair(hours, "h", minutes % 60, "m");
  if (hours < 48) return `${hours}h`;
  if (hours < 192) return pair(Math.trunc(hours / 24), "d", hours % 24, "h");
  if (hours < 24 * 365 * 2) return `${Math.trunc(hours / 24)}d`;
  if (hours < 24 * 365 * 8) return pair(Math.trunc(hours / 24 / 365), "y", Math.trunc(hours / 24) % 365, "d");
  return `${Math.trunc(hours / 24 / 365)}y`;
}
