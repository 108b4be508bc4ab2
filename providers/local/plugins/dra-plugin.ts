/** One plugin of a driver, by the DRA plugin API v1 or v1beta1 on its unix socket. Each call has a deadline. */
import { connect } from "node:net";
import { type CallOptions, createClient } from "@connectrpc/connect";
import { createGrpcTransport, Http2SessionManager } from "@connectrpc/connect-node";
import { type Device, DRAPlugin } from "./api/dra/api.gen.js";
import { DRAPlugin as OlderPlugin } from "./api/dra-v1beta1/api.gen.js";
import { DRAResourceHealth } from "./api/dra-health/api.gen.js";
import { DRAResourceHealth as OlderHealth } from "./api/dra-health-v1alpha1/api.gen.js";
import type { HealthReport } from "./claim-health.ts";

/** A claim as plugins know it. */
export interface ClaimName {
  namespace: string;
  uid: string;
  name: string;
}

/** Names of services, as plugins tell them when they register. */
export interface DraServices {
  claims: DraService;
  /** Absent: it says nothing of its devices' health. */
  health?: DraHealthService | undefined;
}

/** kubelet: dra_plugin.go, servicesSupportedByKubelet. The newest first: the first is taken that a plugin has. */
export const DRA_SERVICES = ["v1.DRAPlugin", "v1beta1.DRAPlugin"] as const;
export const DRA_HEALTH_SERVICES = ["v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth"] as const;
type DraService = (typeof DRA_SERVICES)[number];
type DraHealthService = (typeof DRA_HEALTH_SERVICES)[number];

/** Of one claim; the same of each version of the API. */
export interface PrepareAnswer {
  devices: readonly Pick<Device, "requestNames" | "poolName" | "deviceName" | "cdiDeviceIds">[];
  /** Empty when all is well. */
  error: string;
}

/** What fails rejects with what the plugin says; of one claim, it is said in its answer. Both are by uid. */
export interface DraPlugin {
  prepare(claims: readonly ClaimName[], signal: AbortSignal): Promise<Readonly<Record<string, PrepareAnswer>>>;
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
export function connectDraPlugin(socket: string, services: DraServices): DraPlugin {
  const closed = new AbortController();
  const baseUrl = "http://localhost";
  const sessionManager = new Http2SessionManager(baseUrl, {}, { createConnection: () => connect(socket) });
  const transport = createGrpcTransport({ baseUrl, readMaxBytes: MAX_REPLY_BYTES, sessionManager });
  const client =
    services.claims === "v1.DRAPlugin" ? createClient(DRAPlugin, transport) : createClient(OlderPlugin, transport);
  const health =
    services.health === "v1alpha1.DRAResourceHealth"
      ? createClient(OlderHealth, transport)
      : createClient(DRAResourceHealth, transport);
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
