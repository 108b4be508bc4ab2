/** One backend of engine cri with a containerd of its own, and a registry with images, for the tests of a file. */
import { mkdtempSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, describe } from "vitest";
import { CriEngine } from "../../../providers/local/engines/cri/engine.ts";
import { HostNetwork } from "../../../providers/local/network/network.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { systemClock } from "../../../src/util/clock.ts";
import { missingForContainerd } from "../../support/containerd.ts";
import { testNetwork } from "../../support/host.ts";
import { leaveOut } from "../../support/left-out.ts";
import { missingForImages } from "../../support/registry.ts";
import { pushImages } from "../backend/containers.ts";
import { Bench, LOG_LIMITS } from "../backend/suite.ts";

type Options = Partial<ConstructorParameters<typeof CriEngine>[0]>;

/**
 * @param what the tests are about
 * @param more options of the engine; `missing`: what the host lacks besides what all such tests need
 * @param tests are called when there is nothing missing; the backend is open in each test
 */
export async function onCri(
  what: string,
  { missing = [], ...more }: Options & { missing?: string[] },
  tests: (bench: Bench) => void,
): Promise<void> {
  const lacks = [(await missingForContainerd()) ?? [], missing, missingForImages() ?? []].flat();
  if (lacks.length > 0) return leaveOut(what, lacks);
  const images = await pushImages();
  const { dir: _dir, ...network } = testNetwork("");
  const createEngine = (stateDir: string) =>
    new CriEngine({
      stateDir,
      clock: systemClock,
      logger: silentLogger,
      network,
      images: { insecureRegistries: [images.registry.host] },
      logLimits: LOG_LIMITS,
      ...more,
    });
  describe(what, () => {
    const bench = new Bench(
      { name: "cri", image: images.image, createEngine },
      mkdtempSync(join(tmpdir(), "vmlet-cri-it-")),
    );
    beforeAll(() => bench.open(), 60_000);
    afterAll(async () => {
      await bench.close();
      await images.registry.stop();
      await new HostNetwork({ dir: "/nonexistent/network", ...network }).remove();
    }, 60_000);
    tests(bench);
  });
}
