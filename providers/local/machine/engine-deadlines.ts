/**
 * How long a machine waits for its engine. A call that is not answered in time fails for its caller, which tries again
 * or goes on without; what the engine does of it afterwards is harmless, for all calls may be repeated (engine.ts).
 */
import { type Clock, ProviderError } from "../../../src/provider/kit/index.ts";
import type { Sandbox } from "../engine.ts";

/** Each is more than an engine needs for itself before it gives up, on a busy host. */
export const ANSWER_MS = {
  /** A disk is made of an image at its first use. */
  launch: 600_000,
  signal: 10_000,
  kill: 90_000,
  conclude: 90_000,
  applyFiles: 90_000,
  growHostVolume: 90_000,
  readVolumeFile: 30_000,
  resize: 90_000,
  stats: 60_000,
  inodes: 60_000,
  open: 300_000,
  recover: 30_000,
  destroy: 120_000,
} as const;

type EngineCall = keyof typeof ANSWER_MS;

/** @throws ProviderError unavailable when the engine has not answered in time */
export async function answered<T>(clock: Clock, call: EngineCall, answer: Promise<T>): Promise<T> {
  const late = Promise.withResolvers<never>();
  const cancel = clock.after(ANSWER_MS[call], () => late.reject(unanswered(call)));
  try {
    return await Promise.race([answer, late.promise]);
  } finally {
    cancel();
  }
}

export function unanswered(call: EngineCall): ProviderError {
  return new ProviderError("unavailable", `the engine has not answered within ${ANSWER_MS[call] / 1000} s (${call})`);
}

/** The sandbox with a deadline for each call that has no signal of its caller's. */
export function limitedSandbox(sandbox: Sandbox, clock: Clock): Sandbox {
  const { applyFiles, growHostVolume, readVolumeFile, resize, resizeMachine, inodes, execToEnd, onHealth } = sandbox;
  return {
    addresses: sandbox.addresses,
    lost: sandbox.lost,
    launch: (container) => answered(clock, "launch", sandbox.launch(container)),
    signal: (container, signal) => answered(clock, "signal", sandbox.signal(container, signal)),
    kill: (container) => answered(clock, "kill", sandbox.kill(container)),
    conclude: (container, exit, keep) => answered(clock, "conclude", sandbox.conclude(container, exit, keep)),
    exec: (container, command, options) => sandbox.exec(container, command, options),
    dial: (port, target, signal) => sandbox.dial(port, target, signal),
    stats: (containers) => answered(clock, "stats", sandbox.stats(containers)),
    close: () => sandbox.close(),
    ...(onHealth && { onHealth: onHealth.bind(sandbox) }),
    ...(execToEnd && { execToEnd: execToEnd.bind(sandbox) }),
    ...(inodes && { inodes: (containers) => answered(clock, "inodes", inodes.call(sandbox, containers)) }),
    ...(applyFiles && { applyFiles: (volume) => answered(clock, "applyFiles", applyFiles.call(sandbox, volume)) }),
    ...(growHostVolume && {
      growHostVolume: (name) => answered(clock, "growHostVolume", growHostVolume.call(sandbox, name)),
    }),
    ...(readVolumeFile && {
      readVolumeFile: (...file) => answered(clock, "readVolumeFile", readVolumeFile.apply(sandbox, file)),
    }),
    ...(resize && {
      resize: (container, resources) => answered(clock, "resize", resize.call(sandbox, container, resources)),
    }),
    // Its containers' time is in it, which is limited one by one.
    ...(resizeMachine && { resizeMachine: resizeMachine.bind(sandbox) }),
  };
}
