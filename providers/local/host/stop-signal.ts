import { constants } from "node:os";

/** Real-time signals, as container runtimes count them. */
const RTMIN = 34;
const RTMAX = 64;

/**
 * The number of a signal as images and pods name it: `SIGQUIT`, `quit`, `3`, `SIGRTMIN+3`, `RTMAX-1`. Undefined when
 * Linux has none of that name.
 */
export function signalNumber(text: string): number | undefined {
  const name = text.toUpperCase().replace(/^SIG/, "");
  const realTime = /^RT(?:MIN(\+\d+)?|MAX(-\d+)?)$/.exec(name);
  if (realTime !== null) {
    const number = (name.startsWith("RTMIN") ? RTMIN : RTMAX) + Number(realTime[1] ?? realTime[2] ?? 0);
    return number >= RTMIN && number <= RTMAX ? number : undefined;
  }
  const number = /^\d+$/.test(name) ? Number(name) : constants.signals[`SIG${name}` as NodeJS.Signals];
  return number >= 1 && number <= RTMAX ? number : undefined;
}
