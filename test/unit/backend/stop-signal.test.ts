import { expect, test } from "vitest";
import { signalNumber } from "../../../providers/local/host/stop-signal.ts";

test.each([
  ["SIGTERM", 15],
  ["TERM", 15],
  ["sigquit", 3],
  ["15", 15],
  ["64", 64],
  ["SIGRTMIN", 34],
  ["SIGRTMIN+3", 37],
  ["rtmin+15", 49],
  ["SIGRTMAX", 64],
  ["RTMAX-14", 50],
])("%s is signal %d", (text, number) => expect(signalNumber(text)).toBe(number));

test.each(["", "SIG", "SIGNONE", "0", "65", "-9", "1.5", "RTMIN-1", "RTMAX+1", "RTMIN+31", "RTMAX-31", "SIGSIGTERM"])(
  "%j is no signal",
  (text) => expect(signalNumber(text)).toBeUndefined(),
);
