/** The engines, by name: what each takes from the configuration file, and how it is made. */
import { z } from "zod";
import type { Logger } from "../../../../src/telemetry/logger.ts";
import type { Clock } from "../../../../src/util/clock.ts";
import type { Engine } from "../engine.ts";
import { createProcessEngine } from "./process/process.ts";

/** Section of the configuration file per engine. */
export const engineSchemas = {
  process: z
    .strictObject({
      images: z
        .record(z.string(), z.array(z.string()).min(1))
        .default({})
        .describe("Command by image, for containers without one; `*` stands for every other image."),
      addressPool: z
        .string()
        .default("127.64.0.0/10")
        .describe("Range within 127.0.0.0/8: each machine gets an address that is its own on this host."),
    })
    .prefault({}),
};

export type EngineSections = { [Name in keyof typeof engineSchemas]: z.infer<(typeof engineSchemas)[Name]> };

export interface EngineSurroundings {
  stateDir: string;
  clock: Clock;
  logger: Logger;
}

export const engineFactories: {
  [Name in keyof EngineSections]: (options: EngineSections[Name], surroundings: EngineSurroundings) => Engine;
} = {
  process: (options, { stateDir, clock }) => createProcessEngine({ ...options, stateDir, clock }),
};
