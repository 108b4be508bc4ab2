import { mkdtempSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { OciEngine } from "../../../providers/local/engines/oci/engine.ts";
import { HostNetwork } from "../../../providers/local/network/network.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { LABEL_NAMESPACE } from "../../../src/provider/owner.ts";
import { systemClock } from "../../../src/util/clock.ts";
import { testNetwork } from "../../support/host.ts";
import { leaveOut } from "../../support/left-out.ts";
import { missingForImages } from "../../support/registry.ts";
import { pushImages } from "../backend/containers.ts";
import { HOST, hostAccessTests } from "../backend/host-access.ts";
import { Bench } from "../backend/suite.ts";

const { dir: _dir, ...network } = testNetwork("");
const createEngine = (stateDir: string, insecureRegistries: string[] = []) =>
  new OciEngine({
    stateDir,
    clock: systemClock,
    logger: silentLogger,
    network,
    host: HOST,
    images: { insecureRegistries },
  });
const problems = (await createEngine("/nonexistent").check()).filter(({ fatal }) => fatal);
const missing = [...problems.map(({ problem }) => problem), ...[missingForImages() ?? []].flat()];

if (missing.length > 0) {
  leaveOut("access to the host on engine oci", missing);
} else {
  const images = await pushImages();
  describe("access to the host on engine oci", () => {
    const create = (stateDir: string) => createEngine(stateDir, [images.registry.host]);
    const bench = new Bench(
      { name: "oci", image: images.image, createEngine: create },
      mkdtempSync(join(tmpdir(), "vmlet-oci-host-")),
    );
    beforeAll(() => bench.open(), 60_000);
    afterAll(async () => {
      await bench.close();
      await images.registry.stop();
      await new HostNetwork({ dir: "/nonexistent/network", ...network }).remove();
    }, 60_000);
    hostAccessTests(bench);

    test("users of its own and namespaces of the host exclude each other", async () => {
      const asked = bench.create({
        labels: { [LABEL_NAMESPACE]: "kube-system" },
        security: { host_users: false },
        host: { network: true },
        containers: [bench.shell("a", "true")],
      });
      await expect(asked).rejects.toMatchObject({ field: "security.host_users" });
    });
  });
}
