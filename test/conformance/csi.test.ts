/**
 * The CSI driver against the CSI project's own checks (csi-sanity): what it has of CSI's identity and controller. The
 * agent is the node: here something in its place tells which node it is.
 */
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, test } from "vitest";
import { HttpVmProvider, MachineApiServer } from "../../providers/http-vm/index.ts";
import { MemoryProvider } from "../../providers/memory/index.ts";
import { Node } from "../../src/csi/api.gen.js";
import { csiNodeId } from "../../src/provider/csi-names.ts";
import { Backends } from "../../src/csi/backends.ts";
import { CsiServer } from "../../src/csi/server.ts";
import { silentLogger } from "../../src/telemetry/logger.ts";
import { buildCsiSanity } from "../e2e/harness/build.ts";
import { runCommand } from "../e2e/harness/exec.ts";

const CLUSTER = "cluster-a";
/** Of the node's own service, which the agent is instead of serving it. */
const NOT_OURS = ["Node Service"];

test("the driver passes all checks of CSI's identity and controller", { timeout: 900_000 }, async () => {
  const program = await buildCsiSanity();
  const folder = await mkdtemp(join(tmpdir(), "vmlet-csi-"));
  const memory = new MemoryProvider();
  const server = new MachineApiServer({ provider: memory, logger: silentLogger });
  const { url } = await server.listen({ socketPath: join(folder, "api.sock") });
  const provider = new HttpVmProvider({ url, pacing: { perSecond: 1000, burst: 1000 } });
  const driver = new CsiServer({
    backends: new Backends([provider]),
    clusterId: CLUSTER,
    version: "test",
    logger: silentLogger,
    routes: (router) =>
      router.service(Node, {
        nodeGetInfo: () => ({ nodeId: csiNodeId(CLUSTER, "node-a") }),
        nodeGetCapabilities: () => ({ capabilities: [] }),
        // The checks clean up with it, whether they have mounted something or not.
        nodeUnpublishVolume: () => ({}),
      }),
  });
  const socket = join(folder, "csi.sock");
  await driver.listen(socket);
  try {
    const { stdout } = await runCommand(program, [
      ...["--csi.endpoint", `unix://${socket}`, "--csi.mountdir", join(folder, "mount")],
      ...["--csi.stagingdir", join(folder, "staging"), "--ginkgo.no-color"],
      ...NOT_OURS.map((text) => `--ginkgo.skip=${text}`),
    ]);
    const [, ran, passed, failed] = /Ran (\d+) of[\s\S]*?(\d+) Passed \| (\d+) Failed/.exec(stdout) ?? [];
    expect({ passed, failed }).toEqual({ passed: ran, failed: "0" });
    expect(Number(ran)).toBeGreaterThan(25);
    // Whatever a check has made, it has removed again, by the driver.
    expect((await memory.volumes.list({ signal: AbortSignal.timeout(5000), labels: {} })).items).toEqual([]);
  } finally {
    await driver.close();
    await provider.close();
    await server.close({ graceMs: 50 });
    await memory.close();
    await rm(folder, { recursive: true, force: true });
  }
});
