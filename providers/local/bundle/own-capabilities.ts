import { readFileSync } from "node:fs";
import { capabilitiesInMask } from "./bundle.ts";

/** What this process, and so all that it starts, can have at all (a backend in a container of its own, say). */
export function ownCapabilities(): string[] {
  return capabilitiesInMask(/^CapBnd:\s*([0-9a-f]+)$/m.exec(readFileSync("/proc/self/status", "latin1"))![1]!);
}
