/**
 * The library surface: everything that may be imported from the package `vmlet`. What is not here is internal and may
 * change at any time. The author of a provider wants `vmlet/provider-kit` instead, which loads far less.
 */
export { Agent, type AgentOptions } from "./agent/agent.ts";
export { loadConfig, parseConfig, type ConfigOverrides } from "./config/load.ts";
export type { AgentConfig, NodeConfig, ProviderConfig } from "./config/schema.ts";
export * from "./provider/kit/index.ts";
export { createLogger, type LogLevel } from "./telemetry/logger.ts";
