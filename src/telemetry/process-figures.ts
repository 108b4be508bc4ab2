/**
 * Figures of this process by the names that all Node.js programs have. Not by prom-client's own collection of them:
 * that loads OpenTelemetry, for exemplars that are not used here, which would cost each agent five megabytes. How late
 * the event loop is, `agent/event-loop.ts` measures.
 */
import type { Registry } from "prom-client";
import Counter from "prom-client/lib/counter.js";
import gc from "prom-client/lib/metrics/gc.js";
import heapSizeAndUsed from "prom-client/lib/metrics/heapSizeAndUsed.js";
import heapSpacesSizeAndUsed from "prom-client/lib/metrics/heapSpacesSizeAndUsed.js";
import osMemoryHeap from "prom-client/lib/metrics/osMemoryHeap.js";
import processHandles from "prom-client/lib/metrics/processHandles.js";
import processMaxFileDescriptors from "prom-client/lib/metrics/processMaxFileDescriptors.js";
import processOpenFileDescriptors from "prom-client/lib/metrics/processOpenFileDescriptors.js";
import processRequests from "prom-client/lib/metrics/processRequests.js";
import processResources from "prom-client/lib/metrics/processResources.js";
import processStartTime from "prom-client/lib/metrics/processStartTime.js";
import version from "prom-client/lib/metrics/version.js";

const FIGURES = [
  cpuTime,
  processStartTime,
  osMemoryHeap,
  processOpenFileDescriptors,
  processMaxFileDescriptors,
  processResources,
  processHandles,
  processRequests,
  heapSizeAndUsed,
  heapSpacesSizeAndUsed,
  version,
  gc,
];
/** Names that break the naming rules that `promtool check metrics` enforces. */
const BADLY_NAMED = ["nodejs_active_handles_total", "nodejs_active_requests_total", "nodejs_active_resources_total"];

export function collectProcessFigures(registry: Registry): void {
  for (const collect of FIGURES) collect(registry, {});
  for (const name of BADLY_NAMED) registry.removeSingleMetric(name);
}

function cpuTime(registry: Registry): void {
  const registers = [registry];
  let last = process.cpuUsage();
  const user = new Counter({
    name: "process_cpu_user_seconds_total",
    help: "Total user CPU time spent in seconds.",
    registers,
    // Sets all three, so that they are of one moment.
    collect() {
      const now = process.cpuUsage();
      const [userSeconds, systemSeconds] = [(now.user - last.user) / 1e6, (now.system - last.system) / 1e6];
      last = now;
      user.inc(userSeconds);
      system.inc(systemSeconds);
      all.inc(userSeconds + systemSeconds);
    },
  });
  const system = new Counter({
    name: "process_cpu_system_seconds_total",
    help: "Total system CPU time spent in seconds.",
    registers,
  });
  const all = new Counter({
    name: "process_cpu_seconds_total",
    help: "Total user and system CPU time spent in seconds.",
    registers,
  });
}
