/** Announcements: that a machine is about to be taken away is told while there is time. */
import type { Check } from "../check.ts";
import { type CheckContext, FOREVER, summary } from "../context.ts";

const CAMEL_CASE = /^[A-Z][A-Za-z0-9]*$/;

export const DISRUPTION_CHECKS: readonly Check[] = [
  {
    name: "disruption/is-told-while-the-machine-runs",
    why: "Its pod is evicted because of it, in keeping with budgets; told too late, or not in lists and events, it dies with its host.",
    skip: ({ canDisrupt }) => (canDisrupt ? undefined : "needs a way to have it announced (--disrupt-command)"),
    async run(context: CheckContext) {
      const { id, version } = await context.running(FOREVER, { labels: context.labelsOf("disruption") });
      await context.disrupt(id);
      const told = await context.until(id, "its `disruption`", ({ disruption }) => disruption !== undefined);
      const { reason, message } = told.disruption!;
      context.expect(CAMEL_CASE.test(reason), "a reason of one word in CamelCase", `it is "${reason}"`);
      context.expect(message !== "", "a message that says more", "it is empty");
      context.expect(told.state === "running", "the machine to run until then", `it was ${summary(told)}`);
      context.expect(told.version > version, `a version above ${version}`, `it is ${told.version}`);
      const { items } = await context.list({ labels: context.labelsOf("disruption") });
      const listed = items.find((machine) => machine.id === id)?.disruption?.reason;
      context.expect(listed === reason, `${reason} in the list, too`, `that says ${listed ?? "nothing of it"}`);
    },
  },
];
