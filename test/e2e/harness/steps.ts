/**
 * Tests that need namespaces of their own: a program runs them one after the other and prints one line of JSON for each,
 * which the test file reads.
 */
import { readFile } from "node:fs/promises";
import { createSandbox } from "./processes.ts";

interface StepResult {
  step: string;
  /** What it found wrong; absent when it passed. */
  failure?: string;
}

export type Steps<World> = Readonly<Record<string, (world: World) => Promise<void>>>;

/**
 * In the program. Steps run in order, also after one that has failed.
 * @param describe says everything that helps to see why a step failed
 * @returns the exit code
 */
export async function runSteps<World>(
  steps: Steps<World>,
  world: World,
  describe: () => Promise<string>,
): Promise<number> {
  let code = 0;
  for (const [step, run] of Object.entries(steps)) {
    const failure = await run(world).then(
      () => undefined,
      async (thrown: unknown) => `${String(thrown)}\n${await describe()}`,
    );
    console.log(JSON.stringify({ step, ...(failure !== undefined && { failure }) } satisfies StepResult));
    if (failure !== undefined) code = 1;
  }
  return code;
}

/**
 * In the test file: runs the program to its end.
 * @param name of its temporary folder; @param program its file
 * @returns what was wrong with a step; undefined when it passed
 */
export async function stepsOf(name: string, program: string): Promise<(step: string) => string | undefined> {
  await using sandbox = await createSandbox(name);
  const running = sandbox.spawn("program", process.execPath, [program]);
  await running.exited;
  const log = await readFile(running.logFile, "utf8");
  const results = log
    .split("\n")
    .filter((line) => line.startsWith('{"step":'))
    .map((line) => JSON.parse(line) as StepResult);
  return (name) => {
    const result = results.find(({ step }) => step === name);
    return result === undefined ? `it did not come to this; the log ends:\n${log.slice(-4000)}` : result.failure;
  };
}
