/**
 * The node plugin of a CSI driver for tests, of its own gRPC server: it says what it was asked, and does it by symbolic
 * means (a folder with a file of what it was told) or, in a bad-mannered mode, not at all.
 */
import { once } from "node:events";
import { createServer, type Http2Server, type ServerHttp2Session } from "node:http2";
import { connectNodeAdapter } from "@connectrpc/connect-node";
import { Registration as Registry } from "../../providers/local/plugins/api/registration/api.gen.js";
import { Node } from "../../src/csi/api.gen.js";

export class TestCsiDriver {
  readonly told: { pluginRegistered: boolean; error: string }[] = [];
  readonly info = { type: "CSIPlugin", name: "csi.example.com", endpoint: "", supportedVersions: ["1.0.0"] };
  nodeInfo = {
    nodeId: "host-1",
    maxVolumesPerNode: 8n,
    accessibleTopology: { segments: { "topology.example.com/rack": "r1" } as Record<string, string> },
  };
  /** It never answers. */
  isSilent = false;
  readonly #sessions = new Set<ServerHttp2Session>();
  readonly #server: Http2Server;

  constructor() {
    const answer = async <T>(reply: T): Promise<T> =>
      this.isSilent ? await new Promise<never>(() => {}) : await Promise.resolve(reply);
    this.#server = createServer(
      connectNodeAdapter({
        connect: false,
        grpcWeb: false,
        routes: (router) => {
          router.service(Node, { nodeGetInfo: () => answer(this.nodeInfo) });
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
