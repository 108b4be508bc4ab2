/** Volumes of CSI drivers: who has not got what its driver is to mount does not run. */
import type { Machine, MachineSpec } from "../../machine.ts";
import type { Check } from "../check.ts";
import { FOREVER, type CheckContext } from "../context.ts";

/** Of no backend: `.invalid` is nobody's. */
const DRIVER = "conformance.invalid";

const OUTLIVING = {
  name: "data",
  type: "csi",
  driver: DRIVER,
  persistent: { volume: "disk-1", pv: "pv-1", access_mode: "read_write_once" },
} as const;

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
  {
    name: "volumes/those-of-csi-drivers-are-told-of-until-the-end",
    why: "The cluster detaches a volume of which no machine tells: what a driver may still have staged or mounted is then written by two hosts.",
    needs: ["volumes.csi_persistent"],
    async run(context: CheckContext) {
      const { id } = await context.create(FOREVER, { ...mounting(context), volumes: [OUTLIVING] });
      const tells = ({ csi_volumes = [] }: Machine) =>
        csi_volumes.some(({ driver, volume }) => driver === DRIVER && volume === OUTLIVING.persistent.volume);
      const machine = await context.until(id, `a message that names ${DRIVER}`, ({ message, started_at }) =>
        [message?.includes(DRIVER), started_at !== undefined].includes(true),
      );
      context.expect(machine.started_at === undefined, "it never to run", `it runs since ${machine.started_at}`);
      context.expect(tells(machine), "it to tell in csi_volumes of the volume that it may have", "it does not");
      const isListed = (await context.list()).items.some((each) => each.id === id && tells(each));
      context.expect(isListed, "the list to tell of it, too", "it does not");
      await context.stop(id, 0);
      const over = await context.untilOver(id);
      context.expect(!tells(over), "it to tell of the volume no more when it is over", "it does");
    },
  },
];
