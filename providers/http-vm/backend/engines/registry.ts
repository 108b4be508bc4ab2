/** The engines, by type: what each takes from the configuration file, and how it is made. */
import { z } from "zod";
import type { Logger } from "../../../../src/telemetry/logger.ts";
import type { Clock } from "../../../../src/util/clock.ts";
import type { Engine } from "../engine.ts";
import { createProcessEngine } from "./process/process.ts";

const processSchema = z.strictObject({
  type: z.literal("process"),
  images: z
    .record(z.string(), z.array(z.string()).min(1))
    .default({})
    .describe("Command by image, for containers without one; `*` stands for every other image."),
  addressPool: z
    .string()
    .default("127.64.0.0/10")
    .describe("Range within 127.0.0.0/8: each machine gets an address that is its own on this host."),
});

export const engineSchema = z.discriminatedUnion("type", [processSchema]);

export type EngineConfig = z.infer<typeof engineSchema>;

export interface EngineSurroundings {
  stateDir: string;
  clock: Clock;
  logger: Logger;
}

export function createEngine(config: EngineConfig, { stateDir, clock }: EngineSurroundings): Engine {
  const { type, ...options } = config;
  switch (type) {
    case "process":
      return createProcessEngine({ ...options, stateDir, clock });
  }
}
