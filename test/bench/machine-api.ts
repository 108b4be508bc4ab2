/** `machine-api.ts PORT`: the in-process provider behind the Machine API, in a process of its own: what HTTP costs, and nothing else. */
import { MachineApiServer } from "../../providers/http-vm/server/server.ts";
import { MemoryProvider } from "../../providers/memory/provider.ts";
import { createLogger } from "../../src/telemetry/logger.ts";
import { systemClock } from "../../src/util/clock.ts";

const provider = new MemoryProvider({ clock: systemClock });
const server = new MachineApiServer({ provider, clock: systemClock, logger: createLogger({ level: "warn" }) });
const { url } = await server.listen({ host: "127.0.0.1", port: Number(process.argv[2]) });
console.log(`serving ${url}`);
