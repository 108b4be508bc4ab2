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

interface Claim {
  /** What there was before the check. */
  before: PodRanges;
  /** The range that was asked for. */
  range: string;
  /** Undefined where a node has its ranges: they are not to be changed under its machines. */
  told: PodRanges | undefined;
}

/** Tells a range that is allowed; it is given back when the check is over. */
async function claim(context: CheckContext, name: string): Promise<Claim> {
  const { signal } = context;
  const before = await rangesOf(context).get({ signal });
  const range = allowed(before);
  const put = rangesOf(context).put({ labels: context.rangeLabels(name), ranges: [range] }, { signal });
  const told = await put.catch((thrown: unknown) => {
    if (isProviderError(thrown, "conflict") && before.state !== "none") return undefined;
    throw thrown;
  });
  return { before, range, told };
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
      const { range, told } = await claim(context, "one");
      if (told === undefined) return;
      context.expect(told.ranges.join() === range, `the range ${range}`, `it is ${told.ranges.join()}`);
      const { signal } = context;
      const [one, other] = [context.rangeLabels("one"), context.rangeLabels("other")];
      const calls = rangesOf(context);
      const again = await calls.put({ labels: one, ranges: [range] }, { signal });
      context.expect(again.ranges.join() === range, "the same to be told again", JSON.stringify(again));
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
      const { told } = await claim(context, "former");
      if (told === undefined) return;
      const { signal } = context;
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
      const { before, told } = await claim(context, "restart");
      await context.restarted();
      const after = await rangesOf(context).get({ signal: context.signal });
      const want = (told ?? before).ranges.join();
      context.expect(after.ranges.join() === want, `the ranges ${want} still`, `they are ${after.ranges.join()}`);
    },
  },
];
