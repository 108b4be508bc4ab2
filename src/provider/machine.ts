/**
 * A machine, as every provider and the Machine API describe it: one shape, in memory and on the wire, so there is no
 * mapping to get wrong. It knows nothing of Kubernetes. Names are snake_case because JSON carries them; sizes are
 * integer bytes, cpu integer millicores, times RFC 3339 UTC with milliseconds, file contents base64.
 *
 * contract/openapi.yaml defines the types, says what each field means, and is what both ends validate against.
 */
import type { Schemas } from "./contract/document.ts";

export type RestartPolicy = Schemas["RestartPolicy"];
export type PullPolicy = Schemas["PullPolicy"];
export type ResourceAmounts = Schemas["ResourceAmounts"];
export type ContainerResources = Schemas["ContainerResources"];
export type EnvVar = Schemas["EnvVar"];
export type FileEntry = Schemas["FileEntry"];
export type Volume = Schemas["Volume"];
export type Mount = Schemas["Mount"];
export type ContainerPort = Schemas["ContainerPort"];
export type HttpAction = Schemas["HttpAction"];
export type Handler = Schemas["Handler"];
export type Probe = Schemas["Probe"];
export type RestartRule = Schemas["RestartRule"];
export type ContainerSecurity = Schemas["ContainerSecurity"];
export type ContainerSpec = Schemas["ContainerSpec"];
export type RegistryAuth = Schemas["RegistryAuth"];
export type MachineSpec = Schemas["MachineSpec"];
export type MachinePatch = Schemas["MachinePatch"];
export type ReservedCapabilities = NonNullable<Schemas["Info"]["reserved"]>;
export type RuntimeHandler = NonNullable<Schemas["Info"]["runtime_handlers"]>[number];
export type MachineState = Schemas["MachineState"];
export type ContainerTermination = Schemas["ContainerTermination"];
export type ContainerState = Schemas["ContainerState"];
export type MachineNotice = Schemas["MachineNotice"];
export type Machine = Schemas["Machine"];
export type Disruption = NonNullable<Machine["disruption"]>;
export type FileVersion = NonNullable<Machine["file_versions"]>[number];

/**
 * A machine that its backend named but did not describe in a way that can be believed: it exists, and its state is
 * unknown. The valid parts of the description are kept, so that its pod can still be deleted.
 */
export interface UnknownMachine {
  id: string;
  /** What is wrong with the description, for people. */
  reason: string;
  state?: MachineState;
  version?: number;
  /** As a machine's own: what is about to befall it is known though it is not. */
  disruption?: Disruption | undefined;
  /** Of the list or event that it came with; absent when it came in answer to a question about this machine. */
  revision?: number;
}

export const TERMINAL_STATES: readonly MachineState[] = ["stopped", "failed", "deleted"];

/** True when nothing of the machine runs any more. `deleting` is not enough: something may still be alive. */
export function isOver(machine: Pick<Machine, "state">): boolean {
  return TERMINAL_STATES.includes(machine.state);
}

/** True when the backend says for certain that nothing of the machine runs any more. */
export function isKnownOver({ state }: Pick<UnknownMachine, "state">): boolean {
  return state !== undefined && isOver({ state });
}

/** Version of the files of this volume that are in place in the machine; undefined when there are none yet. */
export function fileVersion({ file_versions }: Pick<Machine, "file_versions">, volume: string): string | undefined {
  return file_versions?.find((each) => each.volume === volume)?.version;
}

/** The versions with that of one volume replaced. */
export function withFileVersion(
  versions: readonly FileVersion[] = [],
  { volume, version }: FileVersion,
): FileVersion[] {
  return [...versions.filter((each) => each.volume !== volume), { volume, version }];
}
