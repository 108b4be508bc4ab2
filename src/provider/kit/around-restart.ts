/** One restart for all checks that need one: it comes when each has made what it looks at, or has failed before. */
import type { Clock } from "../../util/clock.ts";
import type { Provider } from "../provider.ts";

/**
 * @param run a check, which awaits `restarted` when it has made what it looks at
 * @returns what came of the checks, in their order, when the restart is over too: what comes next would meet it
 *   half-way
 */
export async function aroundRestart<Check, Result>(
  checks: readonly Check[],
  restart: () => Promise<void>,
  run: (check: Check, restarted: () => Promise<void>) => Promise<Result>,
): Promise<Result[]> {
  const over = Promise.withResolvers<void>();
  // Its rejection is for those who wait; there may be none.
  const settled = over.promise.catch(() => {});
  let missing = checks.length;
  const arrive = () => {
    if (--missing === 0) restart().then(over.resolve, over.reject);
  };
  const results = await Promise.all(
    checks.map(async (check) => {
      let hasArrived = false;
      const result = await run(check, () => {
        hasArrived = true;
        arrive();
        return over.promise;
      });
      if (!hasArrived) arrive();
      return result;
    }),
  );
  if (checks.length > 0) await settled;
  return results;
}

/** Resolves when a backend answers that was restarted. @throws its last failure, when it does not in time */
export async function untilItAnswers(
  provider: Provider,
  { clock, patienceMs, signal }: { clock: Clock; patienceMs: number; signal: AbortSignal },
): Promise<void> {
  const deadline = clock.monotonic() + patienceMs;
  for (;;) {
    try {
      await provider.getInfo({ signal });
      return;
    } catch (thrown) {
      if (signal.aborted || clock.monotonic() >= deadline) throw thrown;
    }
    await clock.sleep(100, signal);
  }
}
