/** A driver's plugin of Dynamic Resource Allocation for tests, of its own gRPC server: it says what it was asked. */
import { once } from "node:events";
import { createServer, type Http2Server, type ServerHttp2Session } from "node:http2";
import { connectNodeAdapter } from "@connectrpc/connect-node";
import { DRAPlugin } from "../../providers/local/plugins/api/dra/api.gen.js";
import { DRAPlugin as OlderPlugin } from "../../providers/local/plugins/api/dra-v1beta1/api.gen.js";
import { DRAResourceHealth as OlderHealth } from "../../providers/local/plugins/api/dra-health-v1alpha1/api.gen.js";
import { DRAResourceHealth, HealthStatus } from "../../providers/local/plugins/api/dra-health/api.gen.js";
import { Registration as Registry } from "../../providers/local/plugins/api/registration/api.gen.js";

type Claim = Readonly<Record<"namespace" | "name" | "uid", string>>;

export class TestDriver {
  readonly asked: string[] = [];
  readonly told: { pluginRegistered: boolean; error: string }[] = [];
  readonly info = { type: "DRAPlugin", name: "gpu.example.com", endpoint: "", supportedVersions: ["v1.DRAPlugin"] };
  /** Of the API, by which claims were asked for. */
  readonly versions: string[] = [];
  /** Of its device, in the order in which it says so; then its stream stays as it is. */
  readonly health: HealthStatus[] = [];
  readonly #sessions = new Set<ServerHttp2Session>();
  readonly #server: Http2Server;

  constructor() {
    const told = (verb: string, claims: readonly Claim[]) =>
      this.asked.push(...claims.map(({ namespace, name, uid }) => `${verb} ${namespace}/${name} ${uid}`));
    this.#server = createServer(
      connectNodeAdapter({
        connect: false,
        grpcWeb: false,
        routes: (router) => {
          const plugin = (version: string) => ({
            nodePrepareResources: ({ claims }: { claims: readonly Claim[] }) => {
              told("prepare", claims);
              this.versions.push(version);
              const device = (uid: string) => ({
                requestNames: ["gpu"],
                poolName: "p",
                deviceName: "d0",
                cdiDeviceIds: [`example.com/gpu=${uid}`],
              });
              return { claims: Object.fromEntries(claims.map(({ uid }) => [uid, { devices: [device(uid)] }])) };
            },
            nodeUnprepareResources: ({ claims }: { claims: readonly Claim[] }) => {
              told("unprepare", claims);
              return { claims: Object.fromEntries(claims.map(({ uid }) => [uid, {}])) };
            },
          });
          router.service(DRAPlugin, plugin("v1"));
          router.service(OlderPlugin, plugin("v1beta1"));
          const device = { poolName: "p", deviceName: "d0" };
          const { health: all } = this;
          const reports = (message: string) => ({
            async *nodeWatchResources(_request: unknown, { signal }: { signal: AbortSignal }) {
              for (const health of all) yield { devices: [{ device, health, message }] };
              await once(signal, "abort");
            },
          });
          router.service(DRAResourceHealth, reports("by v1"));
          router.service(OlderHealth, reports("by v1alpha1"));
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
