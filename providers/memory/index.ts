export { MemoryProvider, MEMORY_CAPABILITIES, type MemoryProviderOptions } from "./provider.ts";
export { randomFaults, scriptedFaults, type Fault, type FaultPlan, type Operation } from "./faults.ts";
export type { Behaviour, ImagePolicy, Stages } from "./machine.ts";
export type { Program, ProgramIo } from "./program.ts";
export { shellProgram } from "./shell.ts";
