/** Who reads the log of an agent or of a backend looks for a pod, and requests have ids of machines. */
import { describe, expect, test } from "vitest";
import { HttpVmProvider, MachineApiServer } from "../../../providers/http-vm/index.ts";
import { MemoryProvider } from "../../../providers/memory/index.ts";
import { createProvider } from "../../../src/cli/providers.ts";
import { agentConfigSchema } from "../../../src/config/schema.ts";
import type { MachineSpec } from "../../../src/provider/machine.ts";
import type { Exchange } from "../../../src/provider/kit/index.ts";
import { systemClock } from "../../../src/util/clock.ts";
import { systemRandom } from "../../../src/util/random.ts";
import { collectingLogger } from "../../support/collecting-logger.ts";

const labels = { "vmlet.dev/namespace": "shop", "vmlet.dev/pod": "web-0" };
const spec: MachineSpec = { labels, restart_policy: "never", containers: [{ name: "c", image: "i" }] };
const signal = AbortSignal.timeout(20_000);

async function serving(work: (url: string, lines: () => object[]) => Promise<void>): Promise<void> {
  const logger = collectingLogger();
  const memory = new MemoryProvider();
  const server = new MachineApiServer({ provider: memory, logger });
  const { url } = await server.listen({ host: "127.0.0.1", port: 0 });
  const served = () => logger.lines.filter(({ message }) => message === "Request served").map(({ fields }) => fields);
  try {
    await memory.createPod("m-0", spec, { signal });
    await work(url, served);
  } finally {
    await server.close({ graceMs: 50 });
    await memory.close();
  }
}

describe("a request at level debug", () => {
  test("has the pod at the agent that made the machine, and the request's id at both ends", async () => {
    await serving(async (url, served) => {
      const exchanges: Exchange[] = [];
      const provider = new HttpVmProvider({ url, onExchange: (exchange) => exchanges.push(exchange) });
      await provider.createPod("m-1", { ...spec, labels: { ...labels, "vmlet.dev/pod": "web-1" } }, { signal });
      await provider.close();
      expect(exchanges).toMatchObject([{ method: "PUT", path: "/v1/machines/m-1", status: 200, pod: "shop/web-1" }]);
      const { requestId } = exchanges[0]!;
      await expect.poll(served).toMatchObject([{ requestId, path: "/v1/machines/m-1", pod: "shop/web-1" }]);
    });
  });

  test("has the pod at an agent that has only seen the machine in a list", async () => {
    await serving(async (url) => {
      const exchanges: Exchange[] = [];
      const provider = new HttpVmProvider({ url, onExchange: (exchange) => exchanges.push(exchange) });
      await provider.getPods({ labels: {}, signal });
      await provider.stopPod("m-0", { graceSeconds: 0, signal });
      await provider.close();
      expect(exchanges.map(({ pod }) => pod)).toEqual([undefined, "shop/web-0"]);
    });
  });

  test("has the pod at a backend that has only now begun to serve", async () => {
    await serving(async (url, served) => {
      await (await fetch(`${url}/v1/machines/m-0`)).text();
      await expect.poll(served).toMatchObject([{ method: "GET", status: 200, pod: "shop/web-0" }]);
    });
  });

  test("is written by the agent", async () => {
    await serving(async (url) => {
      const logger = collectingLogger();
      const { nodes } = agentConfigSchema.parse({
        apiVersion: "vmlet.dev/v1",
        kind: "AgentConfig",
        nodes: [{ name: "n", provider: { type: "http-vm", url } }],
      });
      const provider = await createProvider(nodes[0]!.provider, { clock: systemClock, random: systemRandom, logger });
      await provider.getInfo({ signal });
      await provider.close();
      expect(logger.lines).toMatchObject([
        { level: "debug", fields: { method: "GET", path: "/v1/info", status: 200 }, message: "Request to the backend" },
      ]);
    });
  });
});
