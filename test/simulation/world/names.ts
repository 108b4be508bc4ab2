import type { Machine } from "../../../src/provider/machine.ts";
import { ownerLabels } from "../../../src/podspec/machine-id.ts";

export const CLUSTER = "c1";
export const NODE = "virtual";
export const OTHER_NODE = "other";
export const NAMESPACES = ["a", "a-b"] as const;
export const OWNER: Readonly<Record<string, string>> = ownerLabels(CLUSTER, NODE);

/** Which pod a machine belongs to, whatever its id says. */
export const uidOf = ({ labels }: Pick<Machine, "labels">): string => labels["vmlet.dev/uid"] ?? "";
