/**
 * What only the engine knows of a container's end, and what it has prepared for it: the first is learned before the
 * second is removed, whenever the backend is killed, and neither is given up at the first failure.
 */
import { readFileSync, rmSync } from "node:fs";
import { join } from "node:path";
import { pause } from "../../../src/provider/kit/index.ts";
import type { ContainerConclusion, ContainerRef, Sandbox, ShimExit } from "../engine.ts";
import { isMissing, writeJson } from "../host/files.ts";
import { launchFile } from "./instance-folders.ts";
import type { MachineContext } from "./machine-context.ts";

const RETRY_MS = 1_000;
/** How often the engine is asked before the end is told without its answer. */
const TRIES = 3;

/** In an instance's folder. */
interface Kept extends ContainerConclusion {
  /** Nothing of the instance is left in the engine. */
  isCleared?: boolean;
}

/** @returns what the engine knows; empty when it does not say so in time. Never rejects */
export async function conclude(
  context: MachineContext,
  sandbox: Sandbox,
  ref: ContainerRef,
  exit: ShimExit,
): Promise<ContainerConclusion> {
  let heard: ContainerConclusion = {};
  const hear = (answer: ContainerConclusion) => (heard = { ...answer, ...heard });
  for (let tries = 1; context.sandbox() === sandbox && !context.work.isClosing; tries++) {
    if (await tryToClear(context, sandbox, ref, exit, hear)) break;
    // The end is told; what the engine still has of the instance is removed later.
    if (tries === TRIES || isKept(ref)) {
      context.work.background(clear(context, sandbox, ref, exit).then(() => {}));
      break;
    }
    await pause(context.clock, RETRY_MS, context.work.closing);
  }
  // A disk that is full keeps nothing: then what was heard is told.
  return { ...heard, ...(await readForSure(context, ref)) };
}

/** What cannot be read just now (no descriptors, no memory) is no answer that the engine has not given. */
async function readForSure({ work, clock, logger }: MachineContext, ref: ContainerRef): Promise<ContainerConclusion> {
  while (!work.isClosing) {
    try {
      return keptConclusion(ref);
    } catch (thrown) {
      logger.warn({ container: ref.name, err: thrown }, "Cannot read yet how a container ended");
      await pause(clock, RETRY_MS, work.closing);
    }
  }
  return {};
}

/** What the engine has said of this instance, to this backend or to a former one; empty when it has not. */
export function keptConclusion(ref: ContainerRef): ContainerConclusion {
  const { isCleared: _cleared, ...conclusion } = readKept(ref) ?? {};
  return conclusion;
}

/**
 * Removes what the engine has of an instance that has ended, or never begins, however long that takes. False when the
 * sandbox or the backend came to its end before. Never rejects.
 */
export async function clear(
  context: MachineContext,
  sandbox: Sandbox,
  ref: ContainerRef,
  exit: ShimExit,
): Promise<boolean> {
  while (context.sandbox() === sandbox && !context.work.isClosing) {
    if (await tryToClear(context, sandbox, ref, exit)) return true;
    await pause(context.clock, RETRY_MS, context.work.closing);
  }
  return false;
}

/**
 * False when the engine may still have something of an instance that has ended: a former backend did not get so far.
 */
export const isCleared = (ref: ContainerRef): boolean => readKept(ref)?.isCleared === true;

/** False when the engine has not confirmed it. */
async function tryToClear(
  { work, home, logger }: MachineContext,
  sandbox: Sandbox,
  ref: ContainerRef,
  exit: ShimExit,
  hear: (answer: ContainerConclusion) => void = () => {},
): Promise<boolean> {
  const keep = (answer: ContainerConclusion) => {
    hear(answer);
    // The first answer: there was nothing left to be learned for another.
    if (readKept(ref) === undefined) writeKept(ref, answer);
  };
  try {
    const answer = await work.inEngine(sandbox.conclude(ref, exit, keep));
    rmSync(launchFile(home, ref), { force: true });
    writeKept(ref, { ...(readKept(ref) ?? answer), isCleared: true });
    return true;
  } catch (thrown) {
    logger.warn({ container: ref.name, instance: ref.id, err: thrown }, "Cannot conclude a container's end yet");
    return false;
  }
}

/** Not when that cannot be known just now. */
function isKept(ref: ContainerRef): boolean {
  try {
    return readKept(ref) !== undefined;
  } catch {
    return false;
  }
}

const keptFile = ({ dir }: ContainerRef) => join(dir, "conclusion.json");

/** What the engine forgets, or has forgotten, outlives a loss of power; that there was nothing to be told need not. */
function writeKept(ref: ContainerRef, kept: Kept): void {
  writeJson(keptFile(ref), kept, { flush: kept.oomKilled === true || kept.terminationMessage !== undefined });
}

/** Undefined when there is none, or a loss of power has torn it: then nothing of the instance is left either. */
function readKept(ref: ContainerRef): Kept | undefined {
  try {
    return JSON.parse(readFileSync(keptFile(ref), "utf8")) as Kept;
  } catch (thrown) {
    if (isMissing(thrown) || thrown instanceof SyntaxError) return undefined;
    throw thrown;
  }
}
