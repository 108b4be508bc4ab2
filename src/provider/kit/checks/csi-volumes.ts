/** Volumes of CSI drivers: who has not got what its driver is to mount does not run. */
import type { MachineSpec } from "../../machine.ts";
import type { Check } from "../check.ts";
import { FOREVER, type CheckContext } from "../context.ts";

/** Of no backend: `.invalid` is nobody's. */
const DRIVER = "conformance.invalid";

const mounting = (context: CheckContext): Partial<MachineSpec> => ({
  volumes: [{ name: "data", type: "csi", driver: DRIVER }],
  containers: [context.container(FOREVER, { mounts: [{ volume: "data", path: "/data" }] })],
});

export const CSI_CHECKS: readonly Check[] = [
  {
    name: "volumes/wait-for-their-csi-driver",
    why: "A pod that runs without its volume writes where nobody looks, or reads nothing where its secrets should be, and nobody is told.",
    needs: ["volumes.csi"],
    async run(context: CheckContext) {
      const { id } = await context.create(FOREVER, mounting(context));
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
