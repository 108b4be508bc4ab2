export { MemoryProvider, MEMORY_CAPABILITIES, type MemoryProviderOptions } from "./provider.ts";
export { randomFaults, scriptedFaults } from "./faults.ts";
export { randomCrashes } from "./crashes.ts";
