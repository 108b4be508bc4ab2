/** `watchdog.ts DIR [--keep]`: waits until standard input closes, then kills what carries the mark of DIR and removes it. */
import { once } from "node:events";
import { rm } from "node:fs/promises";
import { killMarked } from "./processes.ts";

const [dir, keep] = process.argv.slice(2);
if (dir === undefined) throw new Error("usage: watchdog.ts DIR [--keep]");
process.stdin.resume();
await once(process.stdin, "close");
await killMarked(dir);
if (keep === undefined) await rm(dir, { recursive: true, force: true, maxRetries: 5 });
