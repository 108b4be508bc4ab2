/** The flag that says how log lines look. */
import { Option } from "commander";

/** For commands that log; its value is `createLogger`'s. */
export function logFormatOption(): Option {
  return new Option("--log-format <format>", "how log lines look; auto: text on a terminal, else JSON")
    .choices(["auto", "text", "json"])
    .default("auto");
}
