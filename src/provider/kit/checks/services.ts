/** The cluster's Services: a table is what its agent has told, all of it. */
import type { Check } from "../check.ts";
import type { CheckContext } from "../context.ts";
import type { ServicePort, ServicesChange } from "../../services.ts";

const NEEDS = ["services"] as const;
const HARMFUL = ["127.0.0.1", "169.254.169.254", "0.0.0.0", "224.0.0.1", "no address"];

const dns = (endpoint: string): ServicePort => ({
  address: "10.96.0.10",
  protocol: "UDP",
  port: 53,
  endpoints: [{ address: endpoint, port: 53 }],
});

const put = (context: CheckContext, change: ServicesChange) =>
  context.provider.services!.put({ labels: context.labelsOf("services"), ...change }, { signal: context.signal });

export const SERVICE_CHECKS: readonly Check[] = [
  {
    name: "services/changes-want-their-base",
    why: "A table that was changed from another one than its agent knows would lead to pods that are gone, for ever.",
    needs: NEEDS,
    inTurn: true,
    async run(context: CheckContext) {
      const { endpoints: _, ...gone } = dns("10.244.1.7");
      const whole = await put(context, { revision: "kit-1", services: [dns("10.244.1.7")] });
      context.expect(whole.revision === "kit-1" && whole.services === 1, "a table of one", JSON.stringify(whole));
      const change = { revision: "kit-3", base: "kit-2", services: [dns("10.244.1.8")] };
      await context.expectCode(put(context, change), ["conflict"], "a change of revision kit-2, of kit-1 alone");
      const emptied = { revision: "kit-2", base: "kit-1", services: [], gone: [gone] };
      for (const told of [await put(context, emptied), await put(context, emptied)])
        context.expect(told.services === 0, "an empty table, told twice", JSON.stringify(told));
      const again = await put(context, change);
      context.expect(again.revision === "kit-3", "the change of what it has by then", JSON.stringify(again));
    },
  },
  {
    name: "services/harmful-are-refused",
    why: "A tenant's endpoint would have machines call the host itself, or its cloud's credentials, by a Service.",
    needs: NEEDS,
    inTurn: true,
    async run(context: CheckContext) {
      for (const address of HARMFUL)
        await context.expectCode(
          put(context, { revision: `harmful ${address}`, services: [dns(address)] }),
          ["invalid"],
          `an endpoint at ${address}`,
        );
    },
  },
];
