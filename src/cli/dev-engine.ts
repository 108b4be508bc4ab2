/**
 * Which engine `vmlet dev` takes when nobody says: containers, where this host can run them and images can be had.
 * Without images the first command that everybody types, `kubectl run web --image=nginx`, would wait for ever, while
 * plain processes have stand-ins.
 */
import { toError } from "../util/errors.ts";

export type EngineName = "process" | "oci" | "cri" | "vm" | "memory";

interface EngineChoice {
  engine: EngineName;
  /** In one line: what was chosen, why, and how to choose otherwise. */
  said: string;
}

interface HostAnswers {
  /** What this host lacks for an engine, in words. */
  lacks(engine: "cri" | "oci" | "process"): Promise<readonly string[]>;
  /** Why no image can be had; undefined when they can. */
  imageFault(): Promise<string | undefined>;
}

/** Never fails: a question that cannot be asked counts as something that is lacking. */
export async function chooseEngine({ lacks, imageFault }: HostAnswers): Promise<EngineChoice> {
  const lacking = (engine: Parameters<HostAnswers["lacks"]>[0]) =>
    lacks(engine).catch((thrown: unknown) => [toError(thrown).message]);
  const faults = new Map<string, readonly string[]>();
  for (const engine of ["cri", "oci"] as const) {
    const problems = await lacking(engine);
    faults.set(engine, problems);
    if (problems.length > 0) continue;
    const fault = await imageFault().catch((thrown: unknown) => toError(thrown).message);
    if (fault === undefined)
      return {
        engine,
        said: `Engine ${engine}: this host can run containers and pull their images; --engine process takes plain processes instead.`,
      };
    return {
      engine: "process",
      said: `Engine process, with stand-ins for well-known images: no image could be pulled (${oneLine(fault)}); --engine ${engine} takes containers all the same.`,
    };
  }
  const lackingForProcesses = await lacking("process");
  if (lackingForProcesses.length > 0)
    return {
      engine: "memory",
      said: `Engine memory, whose machines are simulated: there are no plain processes here (${brief(lackingForProcesses)}); --engine process tells more.`,
    };
  const why = [...faults].map(([engine, problems]) => `${engine}: ${brief(problems)}`).join("; ");
  return {
    engine: "process",
    said: `Engine process: this host cannot run containers (${why}); --engine cri names all that it lacks.`,
  };
}

/** What is taken when the engine that was chosen does not start. */
export function fallBack(engine: EngineName, thrown: unknown): EngineChoice {
  return {
    engine: "process",
    said: `Engine process: engine ${engine} did not start (${oneLine(toError(thrown).message)}); --engine ${engine} tells more.`,
  };
}

function brief([first = "", ...others]: readonly string[]): string {
  return `${oneLine(first)}${others.length === 0 ? "" : ` and ${others.length} more`}`;
}

const MAX_CHARS = 200;

function oneLine(text: string): string {
  const line = text.split("\n", 1)[0]!;
  return line.length > MAX_CHARS ? `${line.slice(0, MAX_CHARS)}...` : line;
}
