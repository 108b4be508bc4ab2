/** Planted bugs around volumes that outlive machines. */
import type { Mutant } from "./mutant.ts";
import { ProviderError } from "../../../src/provider/errors.ts";

const scenario = "volumes";
const rule = 15;

export const VOLUMES: readonly Mutant[] = [
  {
    name: "a machine is asked for before its Node says which volumes are in use",
    rule,
    scenario,
    caughtAs: "V4 asked for a machine before the Node said",
    isTold: () => true,
  },
  {
    name: "what an earlier agent has told of volumes is overwritten",
    rule,
    scenario,
    caughtAs: "V3 the Node says no more that a volume is in use",
    nodeSeen: ({ status = {}, ...node }) => {
      const { volumesInUse: _, ...rest } = status;
      return { ...node, status: rest };
    },
  },
  {
    name: "a volume is in use no more when its pod is gone, whatever the backend says",
    rule,
    scenario,
    caughtAs: "V3 the Node says no more that a volume is in use",
    volume: (volume) => ({ ...volume, attachments: [] }),
  },
  {
    name: "a backend that does not answer has no machines with volumes",
    rule,
    scenario,
    caughtAs: "V3 the Node says no more that a volume is in use",
    provider: (error, operation) =>
      operation === "be.volume" && error.code === "unavailable" ? new ProviderError("not_found", "mutant") : error,
  },
  {
    name: "a machine that stops has its volumes no more",
    rule,
    scenario,
    caughtAs: "V1 two machines have one volume",
    world: { forgetsStopping: true },
  },
  {
    name: "a machine gets a volume that is reserved for another node's",
    rule,
    scenario,
    caughtAs: "V1 two machines have one volume",
    world: { noReservations: true },
  },
  {
    name: "a volume that is claimed for one node is reserved for two, where its class is shared",
    rule,
    scenario,
    caughtAs: "V1 machines of two nodes have a volume that is claimed for one",
    world: { sharesReserved: true },
  },
  {
    name: "a volume that is taken by force is free before its machine is over",
    rule,
    scenario,
    caughtAs: "V2 a volume counts as detached while a machine of its node has it",
    world: { believesForce: true },
  },
  {
    name: "a release that the backend refuses counts as done",
    rule,
    scenario,
    caughtAs: "V2 a volume counts as detached while a machine of its node has it",
    world: { believesRelease: true },
  },
];
