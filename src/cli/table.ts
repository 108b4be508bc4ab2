/** Lists as kubectl prints them: for people, or whole as JSON and YAML. */
import { Option, type Command } from "commander";
import { stringify } from "yaml";
import { printable } from "../streaming/plain-text.ts";

type Output = "wide" | "json" | "yaml";

export interface OutputOptions {
  output?: Output | undefined;
}

interface Column<T> {
  title: string;
  cell: (row: T) => string;
  /** Shown with `-o wide` only. */
  isWide?: boolean | undefined;
}

/** Between two columns. */
const GAP = "   ";

export function withOutputOption(command: Command): Command {
  return command.addOption(new Option("-o, --output <format>", "how to print it").choices(["wide", "json", "yaml"]));
}

/** What is printed, with its last newline. @param empty what people are told of an empty list */
export function listText<T>(
  rows: readonly T[],
  { kind, columns, output, empty }: OutputOptions & { kind: string; columns: readonly Column<T>[]; empty: string },
): string {
  const list = { apiVersion: "vmlet.dev/v1", kind, items: rows };
  if (output === "json") return `${JSON.stringify(list, undefined, 2)}\n`;
  if (output === "yaml") return stringify(list, { lineWidth: 0, aliasDuplicateObjects: false });
  if (rows.length === 0) return `${empty}\n`;
  const shown = columns.filter(({ isWide }) => isWide !== true || output === "wide");
  // What a backend or a tenant wrote must not command the terminal that it is shown on.
  const lines = [
    shown.map(({ title }) => title),
    ...rows.map((row) => shown.map(({ cell }) => printable(cell(row)).replaceAll("\n", " ") || "-")),
  ];
  const widths = shown.map((_, column) => lines.reduce((most, line) => Math.max(most, line[column]!.length), 0));
  const padded = lines.map((line) =>
    line
      .map((cell, column) => cell.padEnd(widths[column]!))
      .join(GAP)
      .trimEnd(),
  );
  return `${padded.join("\n")}\n`;
}
