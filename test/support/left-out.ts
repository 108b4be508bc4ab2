import { test } from "vitest";

/**
 * In place of a suite that this host cannot run: says what is missing. In CI, where everything is installed, that is a
 * failure; elsewhere the suite is shown as skipped.
 */
export function leaveOut(suite: string, missing: readonly string[]): void {
  const why = `${suite}: left out, this host lacks: ${missing.join(", ")}`;
  if (process.env["CI"] === undefined) {
    console.warn(why);
    test.skip(why);
  } else
    test(`${suite} can run on this host`, () => {
      throw new Error(why);
    });
}
