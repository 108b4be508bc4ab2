/**
 * The node plugin of a CSI driver for tests, of its own gRPC server: it says what it was asked, mounts a tmpfs with what
 * it was told in it, and takes it away again; or has bad manners. One that is staged before is a tmpfs of its own, which
 * is bound to where it is published. As a block device it is a loop device of a file in a folder of the test, which is
 * made when it is staged, or published without that, and bound to where it is published.
 */
import { once } from "node:events";
import { existsSync, lstatSync, mkdirSync, rmdirSync, truncateSync, unlinkSync, writeFileSync } from "node:fs";
import { statfs } from "node:fs/promises";
import { join } from "node:path";
import { createServer, type Http2Server, type ServerHttp2Session } from "node:http2";
import { connectNodeAdapter } from "@connectrpc/connect-node";
import { Code, ConnectError } from "@connectrpc/connect";
import { mountPoints, mountTmpfs } from "../../providers/local/host/mounts.ts";
import { Registration as Registry } from "../../providers/local/plugins/api/registration/api.gen.js";
import {
  Node,
  type NodePublishVolumeRequest,
  NodeServiceCapability_RPC_Type as Rpc,
  type NodeStageVolumeRequest,
  VolumeUsage_Unit,
} from "../../src/csi/api.gen.js";
import { attachLoop, detachLoop, loopOf, resizeLoop } from "../../providers/local/volumes/loop-devices.ts";
import { runCommand } from "../e2e/harness/exec.ts";

type Call = "publish" | "unpublish" | "stage" | "unstage" | "expand";

export class TestCsiDriver {
  readonly told: { pluginRegistered: boolean; error: string }[] = [];
  readonly info = { type: "CSIPlugin", name: "csi.example.com", endpoint: "", supportedVersions: ["1.0.0"] };
  nodeInfo = {
    nodeId: "host-1",
    maxVolumesPerNode: 8n,
    accessibleTopology: { segments: { "topology.example.com/rack": "r1" } as Record<string, string> },
  };
  /** It never says how it knows this host. */
  isSilent = false;
  /** It never answers when it is to mount or to take back. */
  isHanging = false;
  /** What it refuses to do, with the words. */
  readonly refuses = new Map<Call, string>();
  /** It says that it has mounted, and has not. */
  isLying = false;
  capabilities: Rpc[] = [];
  /** Where the files of block devices are. */
  disks = "";
  /** What it publishes as a block device, in place of one. */
  publishesInstead: string | undefined;
  /** What it was asked, in order: `stage ID`, `publish ID`, `unpublish ID`. */
  readonly asked: string[] = [];
  readonly published = new Map<string, NodePublishVolumeRequest>();
  readonly staged = new Map<string, NodeStageVolumeRequest>();
  readonly #sessions = new Set<ServerHttp2Session>();
  readonly #server: Http2Server;

  constructor() {
    this.#server = createServer(
      connectNodeAdapter({
        connect: false,
        grpcWeb: false,
        routes: (router) => {
          router.service(Node, {
            nodeGetInfo: async () => (this.isSilent ? await new Promise<never>(() => {}) : this.nodeInfo),
            nodeGetCapabilities: () => ({
              capabilities: this.capabilities.map((type) => ({ type: { case: "rpc" as const, value: { type } } })),
            }),
            nodeStageVolume: async (request) => {
              await this.#ask("stage", request.volumeId);
              await this.#stage(request);
              return {};
            },
            nodeUnstageVolume: async ({ volumeId, stagingTargetPath }) => {
              await this.#ask("unstage", volumeId);
              await unmount(stagingTargetPath);
              await this.#detach(volumeId);
              this.staged.delete(volumeId);
              return {};
            },
            nodeExpandVolume: async ({ volumeId, capacityRange }) => {
              await this.#ask("expand", volumeId);
              const device = this.disks === "" ? undefined : await loopOf(join(this.disks, volumeId));
              if (device !== undefined) {
                truncateSync(device.file, Number(capacityRange?.requiredBytes ?? 0));
                await resizeLoop(device);
              }
              return {};
            },
            nodeGetVolumeStats: async ({ volumePath }) => {
              const { bsize, blocks, bfree, bavail } = await statfs(volumePath);
              const [total, used, available] = [blocks, blocks - bfree, bavail].map((each) => BigInt(each * bsize));
              return { usage: [{ unit: VolumeUsage_Unit.BYTES, total: total!, used: used!, available: available! }] };
            },
            nodePublishVolume: async (request) => {
              await this.#ask("publish", request.volumeId);
              await this.#publish(request);
              return {};
            },
            nodeUnpublishVolume: async ({ volumeId, targetPath }) => {
              await this.#ask("unpublish", volumeId);
              await unmount(targetPath);
              if (!this.staged.has(volumeId)) await this.#detach(volumeId);
              this.published.delete(volumeId);
              return {};
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

  async #ask(what: Call, id: string): Promise<void> {
    this.asked.push(`${what} ${id}`);
    if (this.isHanging) await new Promise<never>(() => {});
    const refusal = this.refuses.get(what);
    if (refusal !== undefined) throw new ConnectError(refusal, Code.Internal);
  }

  async #stage(request: NodeStageVolumeRequest): Promise<void> {
    if (isBlock(request)) await this.#attach(request.volumeId);
    else await this.#stageMount(request);
    this.staged.set(request.volumeId, request);
  }

  async #stageMount({ stagingTargetPath: target, ...told }: NodeStageVolumeRequest): Promise<void> {
    const { volumeContext, publishContext, secrets } = told;
    if (!(await isMounted(target))) await mountTmpfs(target, { sizeBytes: 1024 * 1024, mode: "0777" });
    writeFileSync(join(target, "staged.json"), JSON.stringify({ volumeContext, publishContext, secrets }));
  }

  /** @returns `/dev/loop0` */
  async #attach(volumeId: string): Promise<string> {
    const file = join(this.disks, volumeId);
    if (!existsSync(file)) writeFileSync(file, Buffer.alloc(1024 * 1024));
    return (await attachLoop(file, { readOnly: false })).path;
  }

  async #detach(volumeId: string): Promise<void> {
    const device = this.disks === "" ? undefined : await loopOf(join(this.disks, volumeId));
    if (device !== undefined) await detachLoop(device);
  }

  async #publish(request: NodePublishVolumeRequest): Promise<void> {
    const { targetPath: target, stagingTargetPath, volumeId, volumeContext, secrets, readonly } = request;
    if (isBlock(request)) {
      const device = this.publishesInstead ?? (await this.#attach(volumeId));
      if (!existsSync(target)) writeFileSync(target, "");
      if (!(await isMounted(target))) await runCommand("mount", ["--bind", device, target]);
    } else if (!this.isLying) {
      mkdirSync(target, { recursive: true });
      const isNew = !(await isMounted(target));
      if (isNew && stagingTargetPath !== "") await runCommand("mount", ["--bind", stagingTargetPath, target]);
      else if (isNew) await mountTmpfs(target, { sizeBytes: 1024 * 1024, mode: "0755" });
      if (!readonly || isNew) writeFileSync(join(target, "told.json"), JSON.stringify({ volumeContext, secrets }));
    }
    this.published.set(volumeId, request);
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

const isBlock = ({ volumeCapability }: NodePublishVolumeRequest | NodeStageVolumeRequest): boolean =>
  volumeCapability?.accessType.case === "block";

const isMounted = async (target: string): Promise<boolean> => (await mountPoints()).some(({ path }) => path === target);

async function unmount(target: string): Promise<void> {
  if (await isMounted(target)) await runCommand("umount", [target]);
  try {
    if (lstatSync(target).isDirectory()) rmdirSync(target);
    else unlinkSync(target);
  } catch (thrown) {
    if ((thrown as NodeJS.ErrnoException).code !== "ENOENT") throw thrown;
  }
}
