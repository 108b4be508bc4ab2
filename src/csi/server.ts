/** The CSI driver as a gRPC server on a unix socket: its identity, and its controller. */
import { once } from "node:events";
import { chmodSync } from "node:fs";
import { createServer, type Http2Server, type ServerHttp2Session } from "node:http2";
import type { ConnectRouter, Interceptor } from "@connectrpc/connect";
import { Code, ConnectError } from "@connectrpc/connect";
import { connectNodeAdapter } from "@connectrpc/connect-node";
import { removeStaleSocket, withoutHost } from "../http/listen.ts";
import { CSI_DRIVER } from "../provider/csi-names.ts";
import type { Logger } from "../telemetry/logger.ts";
import {
  Controller,
  Identity,
  PluginCapability_Service_Type as Service,
  PluginCapability_VolumeExpansion_Type as Expansion,
} from "./api.gen.js";
import type { Backends } from "./backends.ts";
import { type ControllerOptions, ControllerService } from "./controller.ts";
import { csiError } from "./errors.ts";

/** No request is longer: names, parameters, topologies. */
const MAX_REQUEST_BYTES = 4 * 1024 * 1024;

interface CsiServerOptions extends ControllerOptions {
  version: string;
  logger: Logger;
  /** Further services; for tests. */
  routes?: ((router: ConnectRouter) => void) | undefined;
}

export class CsiServer {
  readonly #server: Http2Server;
  readonly #sessions = new Set<ServerHttp2Session>();

  constructor(options: CsiServerOptions) {
    this.#server = createServer(
      withoutHost(
        connectNodeAdapter({
          routes: (router) => {
            router.service(Identity, identityService(options.backends, options.version));
            router.service(Controller, new ControllerService(options));
            options.routes?.(router);
          },
          connect: false,
          grpcWeb: false,
          readMaxBytes: MAX_REQUEST_BYTES,
          interceptors: [logged(options.logger)],
        }),
      ),
    );
    this.#server.on("session", (session) => {
      this.#sessions.add(session);
      session.once("close", () => this.#sessions.delete(session));
    });
  }

  /** @param socketPath may be there already, of a driver that was killed @throws Error when another one listens */
  async listen(socketPath: string): Promise<void> {
    if (!(await removeStaleSocket(socketPath)))
      throw new Error(`another driver listens on ${socketPath}: stop it, or choose another path`);
    this.#server.listen(socketPath);
    await once(this.#server, "listening");
    // For the sidecars in the same pod, which may run as another user of the same group.
    chmodSync(socketPath, 0o660);
  }

  async close(): Promise<void> {
    const closed = once(this.#server, "close");
    this.#server.close();
    for (const session of this.#sessions) session.destroy();
    await closed;
  }
}

function identityService(backends: Backends, version: string) {
  return {
    getPluginInfo: () => ({ name: CSI_DRIVER, vendorVersion: version }),
    async getPluginCapabilities(_request: unknown, { signal }: { signal: AbortSignal }) {
      const hasZones = await backends.hasZones(signal);
      const services = [Service.CONTROLLER_SERVICE, ...(hasZones ? [Service.VOLUME_ACCESSIBILITY_CONSTRAINTS] : [])];
      return {
        capabilities: [
          ...services.map((type) => ({ type: { case: "service" as const, value: { type } } })),
          { type: { case: "volumeExpansion" as const, value: { type: Expansion.ONLINE } } },
        ],
      };
    },
    async probe(_request: unknown, { signal }: { signal: AbortSignal }) {
      const why = await backends.whyNotReady(signal);
      if (why === undefined) return { ready: true };
      throw new ConnectError(why, Code.FailedPrecondition);
    },
  };
}

/** Says what failed and why, and answers it in gRPC's words. */
function logged(logger: Logger): Interceptor {
  return (next) => async (request) => {
    try {
      return await next(request);
    } catch (thrown) {
      const error = csiError(thrown);
      const level = error.code === Code.Internal ? "error" : "info";
      logger[level]({ method: request.method.name, code: Code[error.code], err: thrown }, "A call of CSI failed");
      throw error;
    }
  };
}
