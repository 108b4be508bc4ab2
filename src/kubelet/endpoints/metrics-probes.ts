import type { PodLookup } from "../pod-lookup.ts";
import { TEXT_FORMAT, family, type Sample } from "../exposition.ts";
import type { Handler } from "../router.ts";

/** One probe's tally since its container started. */
export interface ProbeTally {
  podUid: string;
  container: string;
  probeType: "Liveness" | "Readiness" | "Startup";
  result: "successful" | "failed" | "unknown";
  count: number;
}

/** `/metrics/probes`. Probes run inside the machines, so the tallies are what their backend reported. */
export function probeMetrics(lookup: PodLookup, tallies: () => readonly ProbeTally[]): Handler {
  return {
    kind: "plain",
    handle: () => {
      const pods = new Map(lookup.list().map(({ pod }) => [pod.metadata?.uid, pod.metadata]));
      const samples = tallies().flatMap((tally): Sample[] => {
        const metadata = pods.get(tally.podUid);
        if (metadata === undefined) return [];
        return [
          {
            labels: [
              ["container", tally.container],
              ["namespace", metadata.namespace ?? ""],
              ["pod", metadata.name ?? ""],
              ["pod_uid", tally.podUid],
              ["probe_type", tally.probeType],
              ["result", tally.result],
            ],
            value: tally.count,
          },
        ];
      });
      const help = "[BETA] Cumulative number of a liveness, readiness or startup probe for a container by result.";
      return Promise.resolve({
        status: 200,
        contentType: TEXT_FORMAT,
        body: family("prober_probe_total", "counter", help, samples),
      });
    },
  };
}
