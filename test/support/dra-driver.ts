/** A driver's plugin of Dynamic Resource Allocation for tests, of its own gRPC server: it says what it was asked. */
import { once } from "node:events";
import { createServer, type Http2Server, type ServerHttp2Session } from "node:http2";
import { connectNodeAdapter } from "@connectrpc/connect-node";
import { DRAPlugin } from "../../providers/local/plugins/api/dra/api.gen.js";
import { DRAResourceHealth, HealthStatus } from "../../providers/local/plugins/api/dra-health/api.gen.js";
import { Registration as Registry } from "../../providers/local/plugins/api/registration/api.gen.js";

export class TestDriver {
  readonly asked: string[] = [];
  readonly told: { pluginRegistered: boolean; error: string }[] = [];
  readonly info = { type: "DRAPlugin", name: "gpu.example.com", endpoint: "", supportedVersions: ["v1.DRAPlugin"] };
  /** Of its device, in the order in which it says so; then its stream stays as it is. */
  readonly health: HealthStatus[] = [];
  readonly #sessions = new Set<ServerHttp2Session>();
  readonly #server: Http2Server;

  constructor() {
    const told = (verb: string, claims: readonly { namespace: string; name: string; uid: string }[]) =>
      this.asked.push(...claims.map(({ namespace, name, uid }) => `${verb} ${namespace}/${name} ${uid}`));
    this.#server = createServer(
      connectNodeAdapter({
        connect: false,
        grpcWeb: false,
        routes: (router) => {
          router.service(DRAPlugin, {
            nodePrepareResources: ({ claims }) => {
              told("prepare", claims);
              const device = (uid: string) => ({
                requestNames: ["gpu"],
                poolName: "p",
                deviceName: "d0",
                cdiDeviceIds: [`example.com/gpu=${uid}`],
              });
              return { claims: Object.fromEntries(claims.map(({ uid }) => [uid, { devices: [device(uid)] }])) };
            },
            nodeUnprepareResources: ({ claims }) => {
              told("unprepare", claims);
              return { claims: Object.fromEntries(claims.map(({ uid }) => [uid, {}])) };
            },
          });
          const device = { poolName: "p", deviceName: "d0" };
          const { health: all } = this;
          router.service(DRAResourceHealth, {
            async *nodeWatchResources(_request, { signal }) {
              for (const health of all) yield { devices: [{ device, health }] };
              await once(signal, "abort");
            },
          });
          router.service(Registry, {
            getInfo: () => this.info,
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
