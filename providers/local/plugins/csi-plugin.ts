/** The node plugin of one CSI driver, by CSI v1 on its unix socket. Each call has a deadline. */
import { connect } from "node:net";
import { type CallOptions, type Client, createClient } from "@connectrpc/connect";
import { createGrpcTransport, Http2SessionManager } from "@connectrpc/connect-node";
import type { MessageInitShape } from "@bufbuild/protobuf";
import {
  Node,
  type NodeGetInfoResponse,
  type NodeExpandVolumeRequestSchema,
  type NodeGetVolumeStatsResponse,
  type NodePublishVolumeRequestSchema,
  type NodeServiceCapability_RPC_Type,
  type NodeStageVolumeRequestSchema,
} from "../../../src/csi/api.gen.js";

/** What fails rejects with what the plugin says. */
export interface CsiPlugin {
  /** How the driver knows this host. */
  info(signal: AbortSignal): Promise<Pick<NodeGetInfoResponse, "nodeId" | "maxVolumesPerNode" | "accessibleTopology">>;
  capabilities(signal: AbortSignal): Promise<ReadonlySet<NodeServiceCapability_RPC_Type>>;
  stage(request: MessageInitShape<typeof NodeStageVolumeRequestSchema>, signal: AbortSignal): Promise<void>;
  unstage(volume: { volumeId: string; stagingTargetPath: string }, signal: AbortSignal): Promise<void>;
  expand(request: MessageInitShape<typeof NodeExpandVolumeRequestSchema>, signal: AbortSignal): Promise<void>;
  stats(
    volume: { volumeId: string; volumePath: string; stagingTargetPath: string },
    signal: AbortSignal,
  ): Promise<Pick<NodeGetVolumeStatsResponse, "usage">>;
  publish(request: MessageInitShape<typeof NodePublishVolumeRequestSchema>, signal: AbortSignal): Promise<void>;
  unpublish(volume: { volumeId: string; targetPath: string }, signal: AbortSignal): Promise<void>;
  /** Ends all calls that are under way. */
  close(): void;
}

/** kubelet: csiTimeout. */
const CALL_MS = 120_000;
const MAX_REPLY_BYTES = 64 * 1024;

/** @param socket path of the plugin's unix socket */
export function connectCsiPlugin(socket: string): CsiPlugin {
  const closed = new AbortController();
  const baseUrl = "http://localhost";
  const sessionManager = new Http2SessionManager(baseUrl, {}, { createConnection: () => connect(socket) });
  const transport = createGrpcTransport({ baseUrl, readMaxBytes: MAX_REPLY_BYTES, sessionManager });
  const client: Client<typeof Node> = createClient(Node, transport);
  const within = (signal: AbortSignal): CallOptions => ({
    timeoutMs: CALL_MS,
    signal: AbortSignal.any([closed.signal, signal]),
  });
  return {
    info: async (signal) => await client.nodeGetInfo({}, within(signal)),
    async capabilities(signal) {
      const { capabilities } = await client.nodeGetCapabilities({}, within(signal));
      return new Set(capabilities.flatMap(({ type }) => (type.case === "rpc" ? type.value.type : [])));
    },
    stage: async (request, signal) => void (await client.nodeStageVolume(request, within(signal))),
    unstage: async (volume, signal) => void (await client.nodeUnstageVolume(volume, within(signal))),
    expand: async (request, signal) => void (await client.nodeExpandVolume(request, within(signal))),
    stats: async (volume, signal) => await client.nodeGetVolumeStats(volume, within(signal)),
    publish: async (request, signal) => void (await client.nodePublishVolume(request, within(signal))),
    unpublish: async (volume, signal) => void (await client.nodeUnpublishVolume(volume, within(signal))),
    close() {
      closed.abort(new Error("the plugin is not asked any more"));
      sessionManager.abort();
    },
  };
}
