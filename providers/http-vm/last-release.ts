/**
 * What the last release wrote otherwise than this one does, brought to today's form before it is checked: agents and
 * backends are not upgraded in one instant. Names that a user chose were fields' names then. An entry goes with the
 * release after the one that changed it.
 */
import type { SchemaName } from "../../src/provider/contract/document.ts";
import { isRecord } from "./json.ts";

type Upgrade = (value: Record<string, unknown>) => void;

const UPGRADES: Partial<Record<SchemaName, Upgrade>> = {
  Machine(machine) {
    toList(machine, "file_versions", (volume, version) => ({ volume, version }));
    eachOf(machine["containers"], resourcesOf);
  },
  ProviderCapacity({ allocatable }) {
    if (isRecord(allocatable)) toList(allocatable, "extended", (name, count) => ({ name, count }));
  },
  MachineSpec(spec) {
    resourcesOf(spec);
    for (const field of ["containers", "init_containers", "ephemeral_containers"]) eachOf(spec[field], resourcesOf);
  },
  MachinePatch(patch) {
    for (const field of ["resources", "ephemeral_containers"]) eachOf(patch[field], resourcesOf);
  },
};

/** In place. */
export function upgrade(name: SchemaName, value: unknown): void {
  if (isRecord(value)) UPGRADES[name]?.(value);
}

const resourcesOf: Upgrade = ({ resources }) => {
  if (!isRecord(resources)) return;
  for (const amounts of [resources["requests"], resources["limits"]])
    if (isRecord(amounts)) toList(amounts, "extended", (name, count) => ({ name, count }));
};

function eachOf(list: unknown, work: Upgrade): void {
  if (Array.isArray(list)) for (const item of list) if (isRecord(item)) work(item);
}

function toList(holder: Record<string, unknown>, field: string, item: (key: string, value: unknown) => object): void {
  const value = holder[field];
  if (isRecord(value)) holder[field] = Object.entries(value).map(([key, each]) => item(key, each));
}
