import type { MachineApiServer, MachineApiServerOptions } from "./options.ts";

/** Serves any Provider as the Machine API (providers/http-vm/openapi.yaml). */
export function createMachineApiServer(options: MachineApiServerOptions): MachineApiServer {
  throw new Error(`the Machine API server for ${options.provider.name} is being written`);
}
