/**
 * How plugins find this host's node, in the folder that they know a kubelet by (`/var/lib/kubelet`):
 *
 *     device-plugins/kubelet.sock   where device plugins register; made again at each start, by which they notice it
 *     plugins_registry/*.sock       sockets of plugins that want to be found; they are looked for every second
 *
 * Who can write there owns the host: the folders are its owner's alone.
 */
import { lstatSync, readdirSync, rmSync } from "node:fs";
import { connect } from "node:net";
import { basename, join } from "node:path";
import { Code, ConnectError, type ConnectRouter, createClient } from "@connectrpc/connect";
import { createGrpcTransport, Http2SessionManager } from "@connectrpc/connect-node";
import { type Clock, type Logger, pause, toError } from "../../../src/provider/kit/index.ts";
import { makeFolder } from "../host/files.ts";
import { type RegisterRequest, Registration } from "./api/device-plugin/api.gen.js";
import { type PluginInfo, Registration as Registry } from "./api/registration/api.gen.js";
import { assertCsiPlugin } from "./judge-csi.ts";
import { DRA_HEALTH_SERVICES, DRA_SERVICES, type DraServices } from "./dra-plugin.ts";
import { API_VERSION, isDriverName, isExtendedResource } from "./judge.ts";
import { UnixServer } from "./unix-server.ts";

/** Names and options. */
const MAX_MESSAGE_BYTES = 64 * 1024;
const SOCKET = "kubelet.sock";
const LOOK_MS = 1_000;
const RETRY_MS = 10_000;
const CALL_MS = 5_000;
/** Sockets that are looked at; a plugin that makes thousands is not followed. */
const MAX_SOCKETS = 256;

interface PluginFolder {
  /** Where the sockets of device plugins are. */
  devicePlugins: string;
  registry: string;
}

export function pluginFolder(directory: string): PluginFolder {
  return { devicePlugins: join(directory, "device-plugins"), registry: join(directory, "plugins_registry") };
}

/** Where plugins register. */
export const pluginSocket = (directory: string): string => join(pluginFolder(directory).devicePlugins, SOCKET);

/** Whether somebody listens there. */
export async function isServed(socket: string): Promise<boolean> {
  const { promise, resolve } = Promise.withResolvers<boolean>();
  const connection = connect(socket, () => resolve(true)).once("error", () => resolve(false));
  return await promise.finally(() => connection.destroy());
}

/** Who takes device plugins. `register` rejects with what the plugin is told; what it answers takes that back. */
interface DevicePlugins {
  register(resource: string, socket: string): Promise<() => void>;
}

/** Who takes plugins of DRA drivers. `register` throws what the plugin is told; what it returns takes that back. */
interface DraPlugins {
  register(driver: string, socket: string, services: DraServices): () => void;
}

/** Who takes node plugins of CSI drivers. `register` rejects with what the plugin is told. */
interface CsiPlugins {
  register(driver: string, socket: string): Promise<() => void>;
}

interface PluginDoorOptions {
  folder: PluginFolder;
  devices: DevicePlugins;
  /** Absent: the engine cannot give what drivers do. */
  claims?: DraPlugins | undefined;
  /** Absent: the engine cannot give machines what drivers mount. */
  csi?: CsiPlugins | undefined;
  clock: Clock;
  logger: Logger;
}

export class PluginDoor {
  readonly #options: PluginDoorOptions;
  readonly #server: UnixServer;
  readonly #closing = new AbortController();
  /** Sockets of the registry that were looked at, with when that is to be done again; in monotonic milliseconds. */
  readonly #seen = new Map<string, { made: string; forget?: (() => void) | undefined; again: number }>();
  #watching: Promise<void> | undefined;

  constructor(options: PluginDoorOptions) {
    this.#options = options;
    const register = (request: RegisterRequest) => this.#register(request);
    const routes = (router: ConnectRouter) => void router.service(Registration, { register });
    this.#server = new UnixServer(join(options.folder.devicePlugins, SOCKET), routes, options.logger);
  }

  /** @throws ConfigError when a kubelet, or another backend, is there already */
  async open(): Promise<void> {
    const { folder } = this.#options;
    makeFolder(folder.registry, 0o750);
    await this.#server.claim();
    // As a kubelet: plugins notice that they have to register again.
    for (const name of readdirSync(folder.devicePlugins))
      if (isSocket(join(folder.devicePlugins, name))) rmSync(join(folder.devicePlugins, name), { force: true });
    await this.#server.listen();
    this.#watching = this.#watchRegistry();
  }

  async close(): Promise<void> {
    this.#closing.abort(new Error("the backend is stopping"));
    await this.#watching;
    await this.#server.close();
  }

  async #register({ version, endpoint, resourceName }: RegisterRequest): Promise<object> {
    const { folder, devices, logger } = this.#options;
    try {
      if (version !== API_VERSION)
        throw new Error(
          `requested API version ${JSON.stringify(version)} is not supported by kubelet. Supported version is ["${API_VERSION}"]`,
        );
      if (endpoint === "" || endpoint === "." || basename(endpoint) !== endpoint || endpoint.includes("\0"))
        throw new Error(`the endpoint ${JSON.stringify(endpoint)} is no name of a socket`);
      await devices.register(resourceName, join(folder.devicePlugins, endpoint));
      return {};
    } catch (thrown) {
      logger.warn({ resource: resourceName, endpoint, err: thrown }, "A device plugin is not taken");
      throw new ConnectError(toError(thrown).message, Code.Unknown);
    }
  }

  // --- those that want to be found ---

  async #watchRegistry(): Promise<void> {
    const { clock, logger } = this.#options;
    const { signal } = this.#closing;
    while (!signal.aborted) {
      try {
        this.#look();
      } catch (thrown) {
        logger.warn({ err: thrown }, "The registry of plugins cannot be looked at");
      }
      await pause(clock, LOOK_MS, signal);
    }
  }

  #look(): void {
    const { folder, clock } = this.#options;
    const found = socketsIn(folder.registry);
    for (const [path, { forget, made }] of this.#seen) {
      if (found.get(path) === made) continue;
      this.#seen.delete(path);
      forget?.();
    }
    for (const [path, made] of found) {
      const seen = this.#seen.get(path);
      if (seen !== undefined && clock.monotonic() < seen.again) continue;
      this.#seen.set(path, { made, again: Infinity });
      void this.#meet(path, made);
    }
  }

  /** One that does not answer is asked again, and keeps no other waiting. */
  async #meet(path: string, made: string): Promise<void> {
    const { clock, logger } = this.#options;
    const isThere = () => this.#seen.get(path)?.made === made;
    try {
      const forget = await this.#introduce(path);
      if (isThere()) this.#seen.set(path, { made, forget, again: Infinity });
      else forget();
    } catch (thrown) {
      if (this.#closing.signal.aborted) return;
      logger.warn({ path, err: thrown }, "A plugin of the registry is not taken");
      if (isThere()) this.#seen.set(path, { made, again: clock.monotonic() + RETRY_MS });
    }
  }

  /** @returns has the plugin that was taken not asked any more */
  async #introduce(path: string): Promise<() => void> {
    const baseUrl = "http://localhost";
    const sessionManager = new Http2SessionManager(baseUrl, {}, { createConnection: () => connect(path) });
    const transport = createGrpcTransport({ baseUrl, readMaxBytes: MAX_MESSAGE_BYTES, sessionManager });
    const client = createClient(Registry, transport);
    const within = { timeoutMs: CALL_MS, signal: this.#closing.signal };
    try {
      const info = await client.getInfo({}, within);
      let forget: () => void;
      try {
        forget = await this.#take({ ...info, endpoint: info.endpoint === "" ? path : info.endpoint });
      } catch (thrown) {
        await client
          .notifyRegistrationStatus({ pluginRegistered: false, error: toError(thrown).message }, within)
          .catch(() => undefined);
        throw thrown;
      }
      try {
        await client.notifyRegistrationStatus({ pluginRegistered: true }, within);
      } catch (thrown) {
        forget();
        throw thrown;
      }
      return forget;
    } finally {
      sessionManager.abort();
    }
  }

  /** @throws Error that tells the plugin why it is not taken */
  async #take({ type, name, endpoint, supportedVersions }: PluginInfo): Promise<() => void> {
    const { devices, claims, csi } = this.#options;
    if (type === "CSIPlugin" && csi !== undefined) {
      assertCsiPlugin(name, endpoint, supportedVersions);
      return await csi.register(name, endpoint);
    }
    if (type === "DRAPlugin" && claims !== undefined) {
      if (!isDriverName(name)) throw new Error(`${JSON.stringify(name)} is no name of a DRA driver`);
      const service = DRA_SERVICES.find((each) => supportedVersions.includes(each));
      if (service === undefined)
        throw new Error(
          `invalid supported gRPC versions of DRA driver plugin ${name} at endpoint ${endpoint}: none of ${DRA_SERVICES.join(", ")} is among [${supportedVersions.join(" ")}]`,
        );
      const health = DRA_HEALTH_SERVICES.find((each) => supportedVersions.includes(each));
      return claims.register(name, endpoint, { claims: service, health });
    }
    if (type !== "DevicePlugin") throw new Error(`there are no plugins of type ${JSON.stringify(type)} here`);
    if (!supportedVersions.includes(API_VERSION))
      throw new Error(
        `manager version, ${API_VERSION}, is not among plugin supported versions [${supportedVersions.join(" ")}]`,
      );
    if (!isExtendedResource(name))
      throw new Error(`invalid name of device plugin socket: the ResourceName ${JSON.stringify(name)} is invalid`);
    return await devices.register(name, endpoint);
  }
}

function isSocket(path: string): boolean {
  return lstatSync(path, { throwIfNoEntry: false })?.isSocket() === true;
}

/**
 * By what tells one from another at the same path, which may have the same inode. A folder's own are looked at too, as
 * a kubelet does.
 */
function socketsIn(folder: string): Map<string, string> {
  const found = new Map<string, string>();
  for (const entry of readdirSync(folder, { withFileTypes: true, recursive: true })) {
    if (!entry.isSocket() || entry.name.startsWith(".") || found.size >= MAX_SOCKETS) continue;
    const path = join(entry.parentPath, entry.name);
    const stats = lstatSync(path, { throwIfNoEntry: false, bigint: true });
    if (stats !== undefined) found.set(path, `${stats.ino} ${stats.mtimeNs}`);
  }
  return found;
}
