/** One device plugin, by the device plugin API v1beta1 on its unix socket. Each call has a deadline. */
import { connect } from "node:net";
import { type CallOptions, type Client, createClient } from "@connectrpc/connect";
import { createGrpcTransport, Http2SessionManager } from "@connectrpc/connect-node";
import {
  type ContainerAllocateResponse,
  DevicePlugin as Service,
  type ListAndWatchResponse,
} from "./api/device-plugin/api.gen.js";

/** A plugin of one resource. What fails rejects with what the plugin says. */
export interface DevicePlugin {
  options(): Promise<{ preStart: boolean; preferred: boolean }>;
  /** Calls `onList` for each list of its devices. Resolves or rejects at the end of the stream. */
  watch(onList: (list: Pick<ListAndWatchResponse, "devices">) => void): Promise<void>;
  preferred(
    choice: { available: readonly string[]; mustInclude: readonly string[]; size: number },
    signal: AbortSignal,
  ): Promise<readonly string[]>;
  /** Undefined when it answers for no container. */
  allocate(ids: readonly string[], signal: AbortSignal): Promise<ContainerAllocateResponse | undefined>;
  preStart(ids: readonly string[], signal: AbortSignal): Promise<void>;
  /** Ends all calls that are under way. */
  close(): void;
}

const CONNECT_MS = 10_000;
const CHOICE_MS = 10_000;
/** Some load a program into their device. */
const ALLOCATE_MS = 60_000;
/** kubelet: KubeletPreStartContainerRPCTimeoutInSecs. */
const PRE_START_MS = 30_000;
/** Ten thousand devices with long names and their topology. */
const MAX_REPLY_BYTES = 8 * 1024 * 1024;

/** @param socket path of the plugin's unix socket */
export function connectDevicePlugin(socket: string): DevicePlugin {
  const closed = new AbortController();
  const baseUrl = "http://localhost";
  const sessionManager = new Http2SessionManager(baseUrl, {}, { createConnection: () => connect(socket) });
  const transport = createGrpcTransport({ baseUrl, readMaxBytes: MAX_REPLY_BYTES, sessionManager });
  const client: Client<typeof Service> = createClient(Service, transport);
  const within = (timeoutMs: number, signal?: AbortSignal): CallOptions => ({
    timeoutMs,
    signal: signal === undefined ? closed.signal : AbortSignal.any([closed.signal, signal]),
  });
  return {
    async options() {
      const options = await client.getDevicePluginOptions({}, within(CONNECT_MS));
      return { preStart: options.preStartRequired, preferred: options.getPreferredAllocationAvailable };
    },
    async watch(onList) {
      for await (const list of client.listAndWatch({}, within(0))) onList(list);
    },
    async preferred({ available, mustInclude, size }, signal) {
      const request = {
        availableDeviceIDs: [...available],
        mustIncludeDeviceIDs: [...mustInclude],
        allocationSize: size,
      };
      const reply = await client.getPreferredAllocation({ containerRequests: [request] }, within(CHOICE_MS, signal));
      return reply.containerResponses[0]?.deviceIDs ?? [];
    },
    async allocate(ids, signal) {
      const request = { containerRequests: [{ devicesIds: [...ids] }] };
      const { containerResponses } = await client.allocate(request, within(ALLOCATE_MS, signal));
      return containerResponses[0];
    },
    async preStart(ids, signal) {
      await client.preStartContainer({ devicesIds: [...ids] }, within(PRE_START_MS, signal));
    },
    close() {
      closed.abort(new Error("the plugin is not asked any more"));
      sessionManager.abort();
    },
  };
}
