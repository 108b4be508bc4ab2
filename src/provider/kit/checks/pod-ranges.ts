/** Ranges of machines' addresses: they are one node's, and nothing harmful. */
import { isProviderError } from "../../errors.ts";
import type { PodRanges } from "../../pod-ranges.ts";
import type { Check } from "../check.ts";
import type { CheckContext } from "../context.ts";

const NEEDS = ["pod_ranges"] as const;
const HARMFUL = ["127.0.0.0/8", "0.0.0.0/0", "169.254.0.0/16", "224.0.0.0/24", "no range"];

const rangesOf = (context: CheckContext) => context.provider.podRanges!;

/** A small range that the owner of the backend allows. */
const allowed = ({ within: [range = ""] }: PodRanges): string => `${range.split("/")[0]}/28`;

/**
 * Tells ranges, and gives them back when the check is over.
 * @param before what there was before the check
 * @returns undefined where a node has its ranges: they are not to be changed under its machines
 */
async function told(
  context: CheckContext,
  name: string,
  ranges: string[],
  before: PodRanges,
): Promise<PodRanges | undefined> {
  try {
    return await rangesOf(context).put({ labels: context.rangeLabels(name), ranges }, { signal: context.signal });
  } catch (thrown) {
    if (isProviderError(thrown, "conflict") && before.state !== "none") return undefined;
    throw thrown;
  }
}

export const POD_RANGE_CHECKS: readonly Check[] = [
  {
    name: "pod-ranges/harmful-are-refused",
    why: "An agent that was taken over would have machines in the place of the host itself, or of its cloud's credentials.",
    needs: NEEDS,
    inTurn: true,
    async run(context: CheckContext) {
      for (const range of HARMFUL)
        await context.expectCode(
          rangesOf(context).put(
            { labels: context.rangeLabels("harmful"), ranges: [range] },
            { signal: context.signal },
          ),
          // The ranges may be another node's already.
          ["invalid", "conflict"],
          `the range ${range}`,
        );
      const { labels, ranges } = await rangesOf(context).get({ signal: context.signal });
      const isTaken = ranges.some((range) => HARMFUL.includes(range));
      context.expect(!isTaken, "none of them to be kept", `${ranges.join(", ")} are, of ${JSON.stringify(labels)}`);
    },
  },
  {
    name: "pod-ranges/are-one-nodes",
    why: "Two nodes on one backend would move each other's pods to other addresses with each report.",
    needs: NEEDS,
    inTurn: true,
    async run(context: CheckContext) {
      const before = await rangesOf(context).get({ signal: context.signal });
      const [signal, range] = [context.signal, allowed(before)];
      const [one, other] = [context.rangeLabels("one"), context.rangeLabels("other")];
      const first = await told(context, "one", [range], before);
      if (first === undefined) return;
      context.expect(first.ranges.join() === range, `the range ${range}`, `it is ${first.ranges.join()}`);
      const again = await told(context, "one", [range], before);
      context.expect(again?.ranges.join() === range, "the same to be told again", JSON.stringify(again));
      const calls = rangesOf(context);
      await context.expectCode(calls.put({ labels: other, ranges: [range] }, { signal }), "conflict", "another's PUT");
      await context.expectCode(calls.delete({ labels: other, signal }), "conflict", "another's DELETE");
      await calls.delete({ labels: one, signal });
      await calls.delete({ labels: one, signal });
      const { state, ranges } = await calls.get({ signal });
      context.expect(state === "none", "none when they were given back", `${state}: ${ranges.join()}`);
    },
  },
  {
    name: "pod-ranges/end-with-others-that-are-refused",
    why: "The cluster may have given the former range to another node: two hosts would have machines with the same addresses.",
    needs: NEEDS,
    inTurn: true,
    async run(context: CheckContext) {
      const before = await rangesOf(context).get({ signal: context.signal });
      const signal = context.signal;
      const first = await told(context, "former", [allowed(before)], before);
      if (first === undefined) return;
      const refused = { labels: context.rangeLabels("former"), ranges: ["127.0.0.0/8"] };
      await context.expectCode(rangesOf(context).put(refused, { signal }), "invalid", "a range that is refused");
      const { state, ranges } = await rangesOf(context).get({ signal });
      context.expect(state !== "ready", "no range to be used any more", `${state}: ${ranges.join()}`);
    },
  },
];

export const POD_RANGE_RESTART_CHECKS: readonly Check[] = [
  {
    name: "pod-ranges/survive-a-restart",
    why: "Machines would get addresses that the cluster routes to another host, until the agent has told them again.",
    needs: NEEDS,
    needsRestart: true,
    async run(context: CheckContext) {
      const before = await rangesOf(context).get({ signal: context.signal });
      const first = await told(context, "restart", [allowed(before)], before);
      await context.restarted();
      const after = await rangesOf(context).get({ signal: context.signal });
      const want = (first ?? before).ranges.join();
      context.expect(after.ranges.join() === want, `the ranges ${want} still`, `they are ${after.ranges.join()}`);
    },
  },
];
