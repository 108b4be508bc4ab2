export { MemoryProvider, MEMORY_CAPABILITIES, type MemoryProviderOptions } from "./provider.ts";
export { randomFaults, scriptedFaults } from "./faults.ts";
