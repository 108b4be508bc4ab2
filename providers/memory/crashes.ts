/** Containers that end by themselves, as programs with a fault do. */
import type { Clock, Random } from "../../src/provider/kit/index.ts";
import type { Behaviour } from "./container.ts";
import type { Program } from "./program.ts";
import { defaultBehaviour } from "./defaults.ts";

const STOPPED_EXIT = 143;

/** Each run of a container ends with this probability: with exit code 1, within a while. */
export function randomCrashes(options: {
  random: Random;
  probability: number;
  withinMs: number;
  /** Of the others. */
  behaviour?: Behaviour | undefined;
}): Behaviour {
  const { random, probability, withinMs, behaviour = defaultBehaviour } = options;
  return (container, context) =>
    random() < probability ? crashAfter(random() * withinMs) : behaviour(container, context);
}

function crashAfter(ms: number): Program {
  return async (io) => {
    const over = new AbortController();
    io.onKill(() => over.abort());
    io.onStop(() => over.abort());
    const isOver = await elapsed(io.clock, ms, over.signal);
    if (!isOver) return STOPPED_EXIT;
    await io.write("stderr", Buffer.from("simulated crash\n"));
    return 1;
  };
}

async function elapsed(clock: Clock, ms: number, signal: AbortSignal): Promise<boolean> {
  return await clock.sleep(ms, signal).then(
    () => true,
    () => false,
  );
}
