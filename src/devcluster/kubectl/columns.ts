/** What the printers of tables have in common: columns, ages, labels (`pkg/printers`). */
import { millisecondsToSeconds } from "date-fns/millisecondsToSeconds";
import { minutesToHours } from "date-fns/minutesToHours";
import { secondsToMinutes } from "date-fns/secondsToMinutes";
import type { Json } from "../objects/object.ts";

interface Column {
  name: string;
  type: "string" | "integer" | "boolean";
  format: string;
  description: string;
  priority: number;
}

export interface Printer {
  columns: Column[];
  cells(object: Json, now: number): (string | number | boolean)[];
  conditions?(object: Json): Json[] | undefined;
}

export const column = (
  name: string,
  options: {
    wide?: boolean | undefined;
    integer?: boolean | undefined;
    boolean?: boolean | undefined;
    format?: string | undefined;
  } = {},
): Column => ({
  name,
  type: options.integer ? "integer" : options.boolean ? "boolean" : "string",
  format: options.format ?? "",
  description: "",
  priority: options.wide ? 1 : 0,
});
export const nameColumn = column("Name", { format: "name" });
export const wide = (name: string) => column(name, { wide: true });
export const orNone = (value: Json): string => String(value || "<none>");

/** `duration.HumanDuration`: two units at most, the coarser the longer. */
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

export const since = (time: string | null | undefined, now: number): string =>
  time ? humanDuration(now - Date.parse(time)) : "<unknown>";
export const age = (object: Json, now: number): string => since(object.metadata.creationTimestamp, now);

export const pairs = (labels: Record<string, string> | undefined): string =>
  orNone(
    Object.entries(labels ?? {})
      .map(([k, v]) => `${k}=${v}`)
      .toSorted()
      .join(","),
  );

export const simple = (
  columns: [
    string,
    (object: Json, now: number) => string | number | boolean,
    { integer?: boolean; boolean?: boolean; wide?: boolean }?,
  ][],
): Printer => ({
  columns: [nameColumn, ...columns.map(([name, , options]) => column(name, options))],
  cells: (object, now) => [object.metadata.name, ...columns.map(([, cell]) => cell(object, now))],
});
