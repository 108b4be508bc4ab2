/** Images that the backend of `vmlet dev` is pulling: the first pod of an image waits for megabytes. */
import type { Machine } from "../provider/machine.ts";
import { pause } from "../util/abort.ts";
import type { Clock } from "../util/clock.ts";
import type { Progress } from "./progress.ts";

const LOOK_MS = 1_000;

/** Shows them until the signal aborts. Never rejects: a backend that does not answer is the agent's to tell. */
export async function showPulls(
  list: (signal: AbortSignal) => Promise<readonly Machine[]>,
  progress: Progress,
  { clock, signal }: { clock: Clock; signal: AbortSignal },
): Promise<void> {
  const shown = new Map<string, () => void>();
  while (!signal.aborted) {
    const machines = await list(signal).catch(() => undefined);
    if (machines !== undefined) follow(new Set(machines.flatMap(pullsOf)), shown, progress);
    await pause(clock, LOOK_MS, signal);
  }
  for (const end of shown.values()) end();
}

function follow(pulls: ReadonlySet<string>, shown: Map<string, () => void>, progress: Progress): void {
  for (const image of pulls) if (!shown.has(image)) shown.set(image, progress.begin(`Pulling image ${image}`));
  for (const [image, end] of shown) {
    if (pulls.has(image)) continue;
    end();
    shown.delete(image);
  }
}

/**
 * Images whose pull has begun and not ended, by what the machine has told of each of its containers.
 * @internal
 */
export function pullsOf({ notices = [], containers, state }: Machine): string[] {
  if (["stopped", "failed", "deleting", "deleted"].includes(state)) return [];
  const pulling = new Map<string | undefined, string>();
  for (const { reason, message, container } of notices.toSorted((a, b) => a.seq - b.seq)) {
    const [, image] = /^Pulling image "([^"]+)"$/.exec(message) ?? [];
    if (reason === "Pulling" && image !== undefined) pulling.set(container, image);
    else if (reason === "Pulled" || reason === "Failed") pulling.delete(container);
  }
  const waiting = new Set(containers.filter((each) => each.state === "waiting").map(({ name }) => name));
  return [...pulling].flatMap(([container, image]) =>
    container === undefined || waiting.has(container) ? [image] : [],
  );
}
