/** ResourceClaims: who has not got what its cluster allocated does not run. */
import type { MachineSpec } from "../../machine.ts";
import type { Check } from "../check.ts";
import { FOREVER, type CheckContext } from "../context.ts";

/** Of no backend: `.invalid` is nobody's. */
const DRIVER = "conformance.invalid";

const claiming = (id: string): Partial<MachineSpec> => ({
  resource_claims: [{ name: "gpu", namespace: "default", claim: "gpu", uid: id, drivers: [DRIVER] }],
});

export const CLAIM_CHECKS: readonly Check[] = [
  {
    name: "claims/wait-for-their-driver",
    why: "A pod that runs without what was allocated to it uses what is another's, or nothing at all, and nobody is told.",
    needs: ["resource_claims"],
    async run(context: CheckContext) {
      const { id } = await context.create(FOREVER, claiming(context.id()));
      const machine = await context.until(id, `a message that names ${DRIVER}`, ({ message, started_at }) =>
        [message?.includes(DRIVER), started_at !== undefined].includes(true),
      );
      context.expect(machine.started_at === undefined, "it never to run", `it runs since ${machine.started_at}`);
      context.expect(machine.state !== "failed", "it to wait for the driver", "it has failed");
      await context.stop(id, 0);
      await context.untilOver(id);
    },
  },
];
