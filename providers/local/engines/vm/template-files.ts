/** A template gets its name when all of it is on the disk: whatever has the name is copied without another look. */
import { rename, rm } from "node:fs/promises";
import { dirname, join } from "node:path";
import type { Clock } from "../../../../src/provider/kit/index.ts";
import { flushFile } from "../../host/files.ts";

const FILES = ["ram.img", "disk.img", "state.bin"] as const;

/**
 * Which templates lead to guests. One copy that does not answer in time says nothing of its template when another has
 * answered meanwhile: this host is slow.
 */
export class ProvenTemplates {
  readonly #clock: Pick<Clock, "monotonic">;
  readonly #answeredAt = new Map<string, number>();

  constructor(clock: Pick<Clock, "monotonic">) {
    this.#clock = clock;
  }

  answered(template: string): void {
    this.#answeredAt.set(template, this.#clock.monotonic());
  }

  /** Notes when a copy begins. @returns whether no copy has answered since */
  begin(template: string): () => boolean {
    const begunAt = this.#clock.monotonic();
    return () => (this.#answeredAt.get(template) ?? -Infinity) < begunAt;
  }
}

/** @param work folder in which it was made, beside its own */
export async function nameTemplate(work: string, dir: string): Promise<void> {
  for (const name of FILES) await flushFile(join(work, name));
  await flushFile(work);
  await rm(dir, { recursive: true, force: true });
  await rename(work, dir);
  await flushFile(dirname(dir));
}
