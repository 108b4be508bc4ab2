/** A logger that keeps what it is told. */
import type { Logger } from "../../src/telemetry/logger.ts";

export interface Line {
  level: "debug" | "info" | "warn" | "error";
  fields: object;
  message: string;
}

export function collectingLogger(lines: Line[] = [], bound: object = {}): Logger & { lines: readonly Line[] } {
  const at = (level: Line["level"]) => (fields: object, message: string) =>
    void lines.push({ level, fields: { ...bound, ...fields }, message });
  return {
    lines,
    debug: at("debug"),
    info: at("info"),
    warn: at("warn"),
    error: at("error"),
    child: (fields) => collectingLogger(lines, { ...bound, ...fields }),
  };
}
