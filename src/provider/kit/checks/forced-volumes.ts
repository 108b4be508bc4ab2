/** Volumes that are taken from their machines: by force, and never before these are over. */
import { isProviderError } from "../../errors.ts";
import { isOver } from "../../machine.ts";
import type { Check } from "../check.ts";
import { FOREVER, type CheckContext } from "../context.ts";
import { made, mounting, NEEDS, volumesOf } from "./disk-cases.ts";

const FORCE_RULES: readonly Omit<Check, "needs">[] = [
  {
    name: "disks/force-releases-when-nothing-runs",
    why: "That a node is out of service is a word; that its machine writes no more has to be so.",
    async run(context: CheckContext) {
      const { id: volume } = await made(context, "forced");
      await volumesOf(context).reserve(volume, "node-a", { signal: context.signal });
      const claim = { volume, reservation: "node-a" };
      const { id } = await context.running("", mounting(context, "forced", FOREVER, [claim]));
      await context.untilTrue("the volume to be released by force", () =>
        volumesOf(context)
          .release(volume, "node-a", { signal: context.signal, force: true })
          .then(
            () => true,
            (thrown: unknown) => {
              if (isProviderError(thrown, "in_use")) return false;
              throw thrown;
            },
          ),
      );
      const { state } = await context.get(id);
      context.expect(isOver({ state }), "a machine that is over, once its volume is released", `it is ${state}`);
      const { attachments, reservations } = await volumesOf(context).get(volume, { signal: context.signal });
      context.expect(
        attachments.length === 0 && reservations.length === 0,
        "a volume that nobody has",
        `attachments are ${JSON.stringify(attachments)}, reservations ${JSON.stringify(reservations)}`,
      );
    },
  },
  {
    name: "disks/force-stops-nobody-else",
    why: "A node that is out of service takes none of another node's machines with it.",
    async run(context: CheckContext) {
      const { id: volume } = await made(context, "bystander");
      await volumesOf(context).reserve(volume, "node-a", { signal: context.signal });
      const claim = { volume, reservation: "node-a" };
      const { id } = await context.running("", mounting(context, "bystander", FOREVER, [claim]));
      await volumesOf(context).release(volume, "node-b", { signal: context.signal, force: true });
      const { state } = await context.get(id);
      context.expect(state === "running", "the machine of node-a to run on", `it is ${state}`);
      const { reservations } = await volumesOf(context).get(volume, { signal: context.signal });
      context.expect(reservations[0]?.name === "node-a", "the reservation for node-a to stay", "it is gone");
    },
  },
];

export const FORCED_VOLUME_CHECKS: readonly Check[] = FORCE_RULES.map((rule) => ({
  ...rule,
  needs: [...NEEDS, "volumes.force_release"],
}));
