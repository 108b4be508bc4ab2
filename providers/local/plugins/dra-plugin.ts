/** One plugin of a driver, by the DRA plugin API v1 on its unix socket. Each call has a deadline. */
import { connect } from "node:net";
import { type CallOptions, type Client, createClient } from "@connectrpc/connect";
import { createGrpcTransport, Http2SessionManager } from "@connectrpc/connect-node";
import { DRAPlugin as Service, type NodePrepareResourceResponse } from "./api/dra/api.gen.js";
import { DRAResourceHealth } from "./api/dra-health/api.gen.js";
import type { HealthReport } from "./claim-health.ts";

/** A claim as plugins know it. */
export interface ClaimName {
  namespace: string;
  uid: string;
  name: string;
}

type Prepared = Pick<NodePrepareResourceResponse, "devices" | "error">;

/** What fails rejects with what the plugin says; of one claim, it is said in its answer. Both are by uid. */
export interface DraPlugin {
  prepare(claims: readonly ClaimName[], signal: AbortSignal): Promise<Readonly<Record<string, Prepared>>>;
  unprepare(claims: readonly ClaimName[], signal: AbortSignal): Promise<Readonly<Record<string, { error: string }>>>;
  /** Calls `onReport` for each list of its devices with their health. Resolves or rejects at the end of the stream. */
  watchHealth(onReport: (report: HealthReport) => void): Promise<void>;
  /** Whether it can be spoken to now; one that does not answer at all has not gone. Never rejects. */
  isThere(): Promise<boolean>;
  /** Ends all calls that are under way. */
  close(): void;
}

/** kubelet: defaultClientCallTimeout. */
const CALL_MS = 45_000;
const MAX_REPLY_BYTES = 8 * 1024 * 1024;

/** @param socket path of the plugin's unix socket */
export function connectDraPlugin(socket: string): DraPlugin {
  const closed = new AbortController();
  const baseUrl = "http://localhost";
  const sessionManager = new Http2SessionManager(baseUrl, {}, { createConnection: () => connect(socket) });
  const transport = createGrpcTransport({ baseUrl, readMaxBytes: MAX_REPLY_BYTES, sessionManager });
  const client: Client<typeof Service> = createClient(Service, transport);
  const health = createClient(DRAResourceHealth, transport);
  const within = (signal: AbortSignal): CallOptions => ({
    timeoutMs: CALL_MS,
    signal: AbortSignal.any([closed.signal, signal]),
  });
  return {
    prepare: async (claims, signal) =>
      (await client.nodePrepareResources({ claims: [...claims] }, within(signal))).claims,
    unprepare: async (claims, signal) =>
      (await client.nodeUnprepareResources({ claims: [...claims] }, within(signal))).claims,
    async watchHealth(onReport) {
      for await (const report of health.nodeWatchResources({}, { timeoutMs: 0, signal: closed.signal }))
        onReport(report);
    },
    isThere: async () => (await sessionManager.connect()) !== "error",
    close() {
      closed.abort(new Error("the plugin is not asked any more"));
      sessionManager.abort();
    },
  };
}
