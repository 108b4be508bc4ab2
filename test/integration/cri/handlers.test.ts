/** The runtimes of engine cri's containerd, by `runtime_handler`. */
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { CriClient } from "../../../providers/local/engines/cri/client.ts";
import { CriEngine } from "../../../providers/local/engines/cri/engine.ts";
import { machineHash } from "../../../providers/local/host/machine-hash.ts";
import { HostNetwork } from "../../../providers/local/network/network.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { systemClock } from "../../../src/util/clock.ts";
import { missingForContainerd } from "../../support/containerd.ts";
import { testNetwork } from "../../support/host.ts";
import { leaveOut } from "../../support/left-out.ts";
import { missingForImages } from "../../support/registry.ts";
import { pushImages } from "../backend/containers.ts";
import { Bench, LOG_LIMITS } from "../backend/suite.ts";

const { dir: _dir, ...network } = testNetwork("");
const missing = [await missingForContainerd(), missingForImages()].flatMap((each) => each ?? []);

if (missing.length > 0) leaveOut("runtime handlers of engine cri", missing);
else {
  const images = await pushImages();
  // containerd asks a shim what it can do, and takes one that says nothing.
  const shims = mkdtempSync(join(tmpdir(), "vmlet-shims-"));
  for (const name of ["containerd-shim-runsc-v1", "runsc"])
    writeFileSync(join(shims, name), "#!/bin/sh\nexit 1\n", { mode: 0o755 });
  process.env["PATH"] = `${process.env["PATH"]}:${shims}`;
  const createEngine = (stateDir: string) =>
    new CriEngine({
      stateDir,
      clock: systemClock,
      logger: silentLogger,
      network,
      images: { insecureRegistries: [images.registry.host] },
      logLimits: LOG_LIMITS,
    });

  describe("runtime handlers of engine cri", () => {
    const bench = new Bench(
      { name: "cri", image: images.image, createEngine },
      mkdtempSync(join(tmpdir(), "vmlet-handlers-")),
    );
    beforeAll(() => bench.open(), 60_000);
    afterAll(async () => {
      await bench.close();
      rmSync(shims, { recursive: true });
      await images.registry.stop();
      await new HostNetwork({ dir: "/nonexistent/network", ...network }).remove();
    }, 60_000);

    const sandboxed = { runtime_handler: "runsc" };

    test("are told with what each can do, the default one without a name", async () => {
      const { runtimeHandlers = [] } = await bench.provider.getInfo({ signal: bench.signal });
      expect(runtimeHandlers.map(({ name }) => name).toSorted()).toEqual(["", "runc", "runsc"]);
      expect(runtimeHandlers.find(({ name }) => name === "runsc")).toMatchObject({ user_namespaces: false });
    });

    test("one that the runtime lacks is refused, and the message names those it has", async () => {
      const created = bench.create({ runtime_handler: "kata", containers: [bench.shell("a", "true")] });
      await expect(created).rejects.toMatchObject({
        code: "unsupported",
        field: "runtime_handler",
        message: expect.stringMatching(/"kata" \(there is .*runsc/),
      });
    });

    test("one without user namespaces refuses a machine that is to have users of its own", async () => {
      const security = { host_users: false };
      const created = bench.create({ ...sandboxed, security, containers: [bench.shell("a", "true")] });
      await expect(created).rejects.toMatchObject({ code: "unsupported", field: "security.host_users" });
    });

    test("one that is named runs the machine, and the runtime has it written down", async () => {
      const id = await bench.create({ runtime_handler: "runc", containers: [bench.shell("a", "exit 3")] });
      expect(await bench.terminated(id, "a")).toMatchObject({ exit_code: 3 });
      const client = new CriClient(`/run/vmlet-cri-${machineHash(join(bench.stateDir, "cri"))}/containerd.sock`);
      const { items } = await client.runtime.listPodSandbox({}, client.within());
      client.close();
      const handlers = items.map(({ labels, runtimeHandler }) => [labels["dev.vmlet/machine"], runtimeHandler]);
      expect(handlers).toEqual([[id, "runc"]]);
    });
  });
}
