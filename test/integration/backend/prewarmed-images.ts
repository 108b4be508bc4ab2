/** Images that are kept ready, on a real engine: a backend of its own process, its registry, and the command line. */
import { execFile } from "node:child_process";
import { join } from "node:path";
import { promisify } from "node:util";
import { expect, test } from "vitest";
import { waitFor } from "../../e2e/harness/wait.ts";
import { type ContainerEngine, engineOnThisHost } from "../../support/engines.ts";
import { testNetwork } from "../../support/host.ts";
import { leaveOut } from "../../support/left-out.ts";
import { missingForImages } from "../../support/registry.ts";
import { withOwnBackend } from "./own-backend.ts";

const PROGRAM = join(import.meta.dirname, "../../../src/cli/main.ts");
const run = promisify(execFile);

export async function prewarmedImages(type: ContainerEngine): Promise<void> {
  const missing = [...(await engineOnThisHost(type)).missing, ...[missingForImages() ?? []].flat()];
  const what = `images that are kept ready outlive a killed backend and a registry that is away, on engine ${type}`;
  if (missing.length > 0) leaveOut(what, missing);
  else test(what, () => keepsImages(type));
}

async function keepsImages(type: ContainerEngine): Promise<void> {
  const { dir: _dir, ...network } = testNetwork("");
  const options = {
    network,
    images: ["t/listed:1", "t/pulled:1"],
    config: ([listed]: readonly string[]) => ({ prewarm: { images: [listed] } }),
  };
  await withOwnBackend(type, options, async ({ url, registry, restart, create, addressesOf }) => {
    const [listed, pulled] = ["listed", "pulled"].map((name) => `${registry.host}/t/${name}:1`) as [string, string];
    const vmlet = async (...args: string[]) =>
      (await run(process.execPath, [PROGRAM, "images", ...args, "--backend", url])).stdout;
    expect(await vmlet("pull", pulled)).toContain(`${pulled}: ready`);
    await waitFor({ what: "the listed image", timeoutMs: 120_000 }, async () => {
      expect(await vmlet("list")).toMatch(/listed:1 +ready/);
    });

    await restart(() => registry.stop());

    await waitFor({ what: "both images", timeoutMs: 120_000 }, async () => {
      expect((await vmlet("list")).match(/:1 +ready/g)).toHaveLength(2);
    });
    for (const [id, image] of Object.entries({ listed, pulled })) {
      await create(id, { labels: {}, image, pull_policy: "never" });
      await addressesOf(id);
    }
    await expect(vmlet("pull", "--timeout", "1", `${registry.host}/t/none:1`)).rejects.toThrow("not here within 1 s");
    await vmlet("remove", pulled);
    expect(await vmlet("list")).not.toMatch(/pulled:1/);
  });
}
