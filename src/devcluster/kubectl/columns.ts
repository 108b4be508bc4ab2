/** What the printers of tables have in common: columns, ages, labels (`pkg/printers`). */
import { humanDuration } from "../../util/human-duration.ts";
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
