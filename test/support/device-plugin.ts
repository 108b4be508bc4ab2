/** Device plugins for tests: one in this process that does what the test says, and Kubernetes' own sample. */
import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { createServer, type Http2Server, type ServerHttp2Session } from "node:http2";
import { connect } from "node:net";
import { join } from "node:path";
import { createClient } from "@connectrpc/connect";
import { connectNodeAdapter, createGrpcTransport, Http2SessionManager } from "@connectrpc/connect-node";
import {
  DevicePlugin as PluginService,
  Registration,
} from "../../providers/local/plugins/api/device-plugin/api.gen.js";
import { Registration as Registry } from "../../providers/local/plugins/api/registration/api.gen.js";

export const GPU = "vendor.example/gpu";

interface Granted {
  envs?: Record<string, string>;
  devices?: { containerPath: string; hostPath: string; permissions: string }[];
  mounts?: { containerPath: string; hostPath: string; readOnly: boolean }[];
}

/** A device plugin of its own gRPC server. */
export class TestPlugin {
  devices = ["g0", "g1"];
  /** Those that it says are broken. */
  #broken: readonly string[] = [];
  readonly told: { pluginRegistered: boolean; error: string }[] = [];
  /** It says nothing to what it is asked. */
  isSilent = false;
  info = { type: "DevicePlugin", name: GPU, endpoint: "", supportedVersions: ["v1beta1"] };
  readonly #sessions = new Set<ServerHttp2Session>();
  readonly #server: Http2Server;
  #again = Promise.withResolvers<void>();

  constructor(grant: (ids: string[]) => Granted = (ids) => ({ envs: { GPUS: ids.join(",") } })) {
    const never = new Promise<never>(() => {});
    this.#server = createServer(
      connectNodeAdapter({
        connect: false,
        grpcWeb: false,
        routes: (router) => {
          router.service(PluginService, {
            getDevicePluginOptions: () => (this.isSilent ? never : {}),
            listAndWatch: this.#watch.bind(this),
            allocate: ({ containerRequests }) => ({
              containerResponses: containerRequests.map(({ devicesIds }) => grant(devicesIds)),
            }),
          });
          router.service(Registry, {
            getInfo: () => (this.isSilent ? never : this.info),
            notifyRegistrationStatus: ({ pluginRegistered, error }) => {
              this.told.push({ pluginRegistered, error });
              return {};
            },
          });
        },
      }),
    );
    this.#server.on("session", (session) => this.#sessions.add(session));
  }

  async *#watch(_request: unknown, { signal }: { signal: AbortSignal }) {
    while (!signal.aborted) {
      yield {
        devices: this.devices.map((ID) => ({ ID, health: this.#broken.includes(ID) ? "Unhealthy" : "Healthy" })),
      };
      await this.#again.promise;
    }
  }

  change(...devices: string[]): void {
    this.devices = devices;
    this.#again.resolve();
    this.#again = Promise.withResolvers();
  }

  break(...devices: string[]): void {
    this.#broken = devices;
    this.change(...this.devices);
  }

  async listen(path: string): Promise<this> {
    this.#server.listen(path);
    await once(this.#server, "listening");
    return this;
  }

  /** As SIGKILL would. */
  die(): void {
    for (const session of this.#sessions) session.destroy();
    this.#server.close();
  }
}

/** As a plugin does, at the socket of a kubelet. */
export async function registerPlugin(
  kubelet: string,
  request: { version?: string; endpoint?: string; resourceName?: string } = {},
): Promise<void> {
  const baseUrl = "http://localhost";
  const sessionManager = new Http2SessionManager(baseUrl, {}, { createConnection: () => connect(kubelet) });
  try {
    const client = createClient(Registration, createGrpcTransport({ baseUrl, sessionManager }));
    await client.register({ version: "v1beta1", endpoint: "gpu.sock", resourceName: GPU, ...request });
  } finally {
    sessionManager.abort();
  }
}

/** Of the sample plugin: two devices, each a file `/tmp/ID` of this host. */
export const SAMPLE = "example.com/resource";

/**
 * Kubernetes' sample plugin, as a process of its own. It knows a kubelet by one path alone, which it has in a mount
 * namespace of its own.
 * @param program the plugin; @param directory of the backend's `engine.plugins`
 */
export function startSamplePlugin(program: string, directory: string): ChildProcess {
  const place = "/var/lib/kubelet/device-plugins";
  const script = `mount -t tmpfs none /var/lib && mkdir -p ${place} && mount --bind "$1" ${place} && exec "$2"`;
  const argv = ["--mount", "--", "sh", "-c", script, "sh", join(directory, "device-plugins"), program];
  return spawn("unshare", argv, { stdio: "ignore" });
}

/** Resolves when it has ended. */
export async function killPlugin(plugin: ChildProcess): Promise<void> {
  if (plugin.exitCode !== null || plugin.signalCode !== null) return;
  const ended = once(plugin, "exit");
  plugin.kill("SIGKILL");
  await ended;
}
