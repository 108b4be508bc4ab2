/** How long a guest may take: to give it up costs the host a boot, many times the work, or its pod a machine. */
import type { PatienceLimits } from "../../host/patience.ts";

/** A copy that runs answers in tenths of a second. */
export const FIRST_ANSWER: PatienceLimits = { ms: 30_000, processorMs: 15_000 };
/** Emulated it takes three or four seconds. */
export const BOOT: PatienceLimits = { ms: 90_000, processorMs: 60_000 };
/** Of what the host asks of a guest that runs, which is done in tenths of a second. */
export const CALL_PROCESSOR_MS = 30_000;
/** To write back all that a guest has in its memory, to a slow disk. */
export const RELEASE: PatienceLimits = { ms: 60_000, processorMs: 30_000 };
