/**
 * The frequency of this host's time-stamp counter: an emulated guest has the same counter, and its clock runs by it.
 */
import { join } from "node:path";
import { run } from "../../host/command.ts";
import { readFileIfExists, writeFileAtomic } from "../../host/files.ts";
import { bootId } from "../../host/proc.ts";

const MEASURE_MS = 10_000;

/**
 * kHz, measured once per boot of the host and kept in `file`: two measurements differ by a few millionths, and a
 * template is of use only with the very value that it was made with. Undefined when it cannot be measured.
 */
export async function tscKhz(guestDir: string, file: string): Promise<number | undefined> {
  const boot = bootId();
  const kept = /^(\S+) (\d+)$/.exec((await readFileIfExists(file)) ?? "");
  if (kept?.[1] === boot) return Number(kept[2]);
  try {
    const { stdout } = await run(join(guestDir, "frequency"), [], { signal: AbortSignal.timeout(MEASURE_MS) });
    const khz = Number(stdout.toString().trim());
    if (!Number.isInteger(khz) || khz <= 0) return undefined;
    await writeFileAtomic(file, `${boot} ${khz}`);
    return khz;
  } catch {
    // A guest image of older make, or a folder from which nothing may be run.
    return undefined;
  }
}
