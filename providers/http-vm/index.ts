export { HttpVmProvider } from "./provider.ts";
export { httpTarget } from "./http-target.ts";
export {
  DEFAULT_DEADLINES,
  DEFAULT_PACING,
  parseTarget,
  type Deadlines,
  type HttpVmLimits,
  type HttpVmOptions,
} from "./options.ts";
export type { CredentialFiles } from "./credentials.ts";
export type { InvalidReason } from "./invalid-reply.ts";
export { MachineApiServer } from "./server/server.ts";
export { VERBS, type Scope, type Verb } from "./server/scope.ts";
export {
  type ApiClient,
  DEFAULT_SERVER_LIMITS,
  type ListenAddress,
  type MachineApiServerOptions,
  type ServerAuth,
  type ServerLimits,
  type ServerTls,
} from "./server/options.ts";
