/**
 * The provider kit: what somebody needs who writes a provider. The contract and its errors, helpers that every provider wants, and the
 * conformance checks.
 */
export { ALL_CAPABILITIES, CAPABILITIES, type Capability } from "../capabilities.ts";
export { isProviderError, ProviderError, type ProviderErrorCode } from "../errors.ts";
export { specFingerprint } from "../fingerprint.ts";
export * from "../machine.ts";
export type * from "../provider.ts";
export { assertCapable, patchCapabilities, requiredCapabilities, type Requirement } from "../requirements.ts";
export type { Check } from "./check.ts";
export {
  CHECKS,
  runConformance,
  type CheckResult,
  type ConformanceOptions,
  type ConformanceReport,
} from "./conformance.ts";
export type { HttpTarget } from "./http-target.ts";
