/**
 * What the node's machines are: the backend's word, else the configuration's, else what most backends are, which is
 * like this host.
 */
import { GO_NAME, goArchitecture } from "../util/platform.ts";
import type { Platform } from "./settings.ts";

interface SaidOfPlatform {
  os?: string | undefined;
  architecture?: string | undefined;
}

/**
 * @param options.reported undefined while the backend has not answered yet
 * @param options.hostArchitecture as Node.js has it in process.arch
 */
export function nodePlatform(options: {
  reported: SaidOfPlatform | undefined;
  configured: SaidOfPlatform;
  hostArchitecture: string;
}): Platform {
  const { reported, configured, hostArchitecture } = options;
  // A module's word is not checked on its way here, and the API server would refuse the whole Node for one bad label.
  const valid = (name: string | undefined) => (name !== undefined && GO_NAME.test(name) ? name : undefined);
  return {
    os: valid(reported?.os) ?? configured.os ?? "linux",
    architecture: valid(reported?.architecture) ?? configured.architecture ?? goArchitecture(hostArchitecture),
    assumed: reported === undefined,
  };
}
