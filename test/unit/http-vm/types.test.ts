/** The Provider contract and the Machine API have one shape: each type is assignable to the other, in both directions. */
import { expect, test } from "vitest";
import type * as machine from "../../../src/provider/machine.ts";
import type * as provider from "../../../src/provider/provider.ts";
import type { ProviderErrorCode } from "../../../src/provider/errors.ts";
import type { Schemas } from "../../../providers/http-vm/document.ts";
import { openApiDocument } from "../../../providers/http-vm/document.ts";

type Assignable<A, B> = [A] extends [B]
  ? [B] extends [A]
    ? true
    : "the contract has more than the document"
  : "the document has more than the contract";

/** Optional fields that one side lacks are assignable all the same; with every field required they are not. */
type AllRequired<T> = T extends (infer U)[]
  ? AllRequired<U>[]
  : T extends object
    ? { [K in keyof T]-?: AllRequired<T[K]> }
    : T;

type Same<A, B> = Assignable<A, B> extends true ? Assignable<AllRequired<A>, AllRequired<B>> : Assignable<A, B>;

/** Does not compile unless the two are the same type. */
const same = {
  Code: true satisfies Same<Schemas["Code"], ProviderErrorCode>,
  RestartPolicy: true satisfies Same<Schemas["RestartPolicy"], machine.RestartPolicy>,
  PullPolicy: true satisfies Same<Schemas["PullPolicy"], machine.PullPolicy>,
  ProviderCapacity: true satisfies Same<Schemas["ProviderCapacity"], provider.ProviderCapacity>,
  ResourceAmounts: true satisfies Same<Schemas["ResourceAmounts"], machine.ResourceAmounts>,
  ContainerResources: true satisfies Same<Schemas["ContainerResources"], machine.ContainerResources>,
  EnvVar: true satisfies Same<Schemas["EnvVar"], machine.EnvVar>,
  FileEntry: true satisfies Same<Schemas["FileEntry"], machine.FileEntry>,
  Volume: true satisfies Same<Schemas["Volume"], machine.Volume>,
  Mount: true satisfies Same<Schemas["Mount"], machine.Mount>,
  ContainerPort: true satisfies Same<Schemas["ContainerPort"], machine.ContainerPort>,
  HttpAction: true satisfies Same<Schemas["HttpAction"], machine.HttpAction>,
  Handler: true satisfies Same<Schemas["Handler"], machine.Handler>,
  Probe: true satisfies Same<Schemas["Probe"], machine.Probe>,
  RestartRule: true satisfies Same<Schemas["RestartRule"], machine.RestartRule>,
  ContainerSecurity: true satisfies Same<Schemas["ContainerSecurity"], machine.ContainerSecurity>,
  ContainerSpec: true satisfies Same<Schemas["ContainerSpec"], machine.ContainerSpec>,
  RegistryAuth: true satisfies Same<Schemas["RegistryAuth"], machine.RegistryAuth>,
  MachineSpec: true satisfies Same<Schemas["MachineSpec"], machine.MachineSpec>,
  MachinePatch: true satisfies Same<Schemas["MachinePatch"], machine.MachinePatch>,
  MachineState: true satisfies Same<Schemas["MachineState"], machine.MachineState>,
  ContainerTermination: true satisfies Same<Schemas["ContainerTermination"], machine.ContainerTermination>,
  ContainerState: true satisfies Same<Schemas["ContainerState"], machine.ContainerState>,
  MachineNotice: true satisfies Same<Schemas["MachineNotice"], machine.MachineNotice>,
  Machine: true satisfies Same<Schemas["Machine"], machine.Machine>,
  MachineEvent: true satisfies Same<Schemas["MachineEvent"], provider.MachineEvent>,
  ProbeTally: true satisfies Same<Schemas["ProbeTally"], provider.ProbeTally>,
  ContainerStats: true satisfies Same<Schemas["ContainerStats"], provider.ContainerStats>,
  MachineStats: true satisfies Same<Schemas["MachineStats"], provider.MachineStats>,
};

/** Building blocks without a type of their own in the contract, and the envelopes that only HTTP needs. */
const ONLY_ON_THE_WIRE = [
  "MachineId",
  "Name",
  "Time",
  "Count",
  "ExitCode",
  "Labels",
  "ErrorReply",
  "Info",
  "StopRequest",
  "MachinePage",
  "EventList",
  "StatsList",
];

test("every schema of the document is either held equal to the contract's type or belongs to HTTP alone", () => {
  const named = [...Object.keys(same), ...ONLY_ON_THE_WIRE];
  expect(named.toSorted()).toEqual(Object.keys(openApiDocument().components.schemas).toSorted());
});
