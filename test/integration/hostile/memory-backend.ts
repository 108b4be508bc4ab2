/**
 * `memory-backend.ts PORT`: machines that are only remembered, behind the Machine API, in a process of its own. Creating one takes
 * half a minute for pods of namespaces whose name begins with `slow-backend`.
 */
import { MachineApiServer } from "../../../providers/http-vm/server/server.ts";
import { MemoryProvider } from "../../../providers/memory/provider.ts";
import { LABEL_NAMESPACE } from "../../../src/podspec/machine-id.ts";
import type { MachineSpec } from "../../../src/provider/machine.ts";
import type { CallOptions } from "../../../src/provider/provider.ts";
import { createLogger } from "../../../src/telemetry/logger.ts";
import { systemClock } from "../../../src/util/clock.ts";

class SlowForSome extends MemoryProvider {
  override async createPod(id: string, spec: MachineSpec, options: CallOptions) {
    if (spec.labels?.[LABEL_NAMESPACE]?.startsWith("slow-backend")) await systemClock.sleep(30_000, options.signal);
    return super.createPod(id, spec, options);
  }
}

const logger = createLogger({ level: "warn" });
const server = new MachineApiServer({
  provider: new SlowForSome({ clock: systemClock }),
  clock: systemClock,
  logger,
});
const { url } = await server.listen({ host: "127.0.0.1", port: Number(process.argv[2]) });
console.log(`serving ${url}`);
