import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { createProvider } from "../../../src/cli/providers.ts";
import {
  runConformance,
  type ContainerSpec,
  type MachineSpec,
  type Provider,
} from "../../../src/provider/kit/index.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { systemClock } from "../../../src/util/clock.ts";
import { systemRandom } from "../../../src/util/random.ts";

const module = join(import.meta.dirname, "../../../examples/custom-provider.ts");

const open = (): Promise<Provider> =>
  createProvider(
    { type: "module", module, options: { shell: "/bin/sh" } },
    { clock: systemClock, random: systemRandom, logger: silentLogger },
  );

describe("the example of a provider", () => {
  let provider: Provider;
  beforeAll(async () => {
    provider = await open();
  });
  afterAll(() => provider.close());
  const signal = AbortSignal.timeout(60_000);

  const create = (id: string, container: Partial<ContainerSpec>, rest: Partial<MachineSpec> = {}) => {
    const main = { name: "main", image: "none", ...container };
    return provider.createPod(id, { labels: {}, restart_policy: "never", containers: [main], ...rest }, { signal });
  };
  const sh = (script: string) => ({ command: ["sh", "-c", script] });
  /** What it printed until it ended. */
  async function output(id: string): Promise<string[]> {
    const lines = await Array.fromAsync(provider.getLogs(id, "main", { follow: true, signal }));
    return lines.map(({ content }) => content.toString());
  }
  const exitCode = async (id: string) => (await provider.getPod(id, { signal })).containers[0]!.terminated?.exit_code;

  test("starts a process where it was told", async () => {
    await create("where", { ...sh("pwd"), working_dir: "/usr" });
    expect(await output("where")).toEqual(["/usr"]);
  });

  test("stops a process by the signal that it was told", async () => {
    await create("how", {
      ...sh("trap 'exit 7' USR1; echo up; while :; do sleep 0.01; done"),
      stop: { signal: "SIGUSR1" },
    });
    for await (const _line of provider.getLogs("how", "main", { follow: true, signal })) break;
    await provider.stopPod("how", { graceSeconds: 30, signal });
    await output("how");
    expect(await exitCode("how")).toBe(7);
  });

  test("tells by its exit code which signal ended a process", async () => {
    await create("by", sh("kill -HUP $$"));
    await output("by");
    expect(await exitCode("by")).toBe(129);
  });

  test("refuses a stop signal that it cannot send", async () => {
    const created = create("no", { ...sh("true"), stop: { signal: "SIGRTMIN+3" } });
    await expect(created).rejects.toMatchObject({ code: "unsupported", field: "containers.0.stop.signal" });
  });

  test("refuses users of the machine's own", async () => {
    const created = create("no", sh("true"), { security: { host_users: false } });
    await expect(created).rejects.toMatchObject({ code: "unsupported", field: "security.host_users" });
  });

  test("keeps the contract", async () => {
    const report = await runConformance(provider, { patienceMs: 30_000, concurrency: 16 });
    expect(report.results.filter((result) => result.outcome === "failed")).toEqual([]);
    expect(report.passed).toBeGreaterThan(10);
  }, 120_000);
});
