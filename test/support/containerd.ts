/** containerd for tests: built once, put on the PATH of this process under the names that it is looked for by. */
import { mkdirSync, symlinkSync } from "node:fs";
import { join } from "node:path";
import { OwnContainerd } from "../../providers/local/engines/cri/own-containerd.ts";
import { buildContainerd, buildContainerdShim } from "../e2e/harness/build.ts";
import { cached } from "../e2e/harness/cache.ts";

/** Why tests with a containerd of their own cannot run here; undefined when they can. */
export async function missingForContainerd(): Promise<string | undefined> {
  try {
    const programs = { containerd: await buildContainerd(), "containerd-shim-runc-v2": await buildContainerdShim() };
    const names = Object.values(programs).map((path) => path.slice(-16));
    const folder = await cached(`containerd-bin-${names.join("-")}`, async (temporary) => {
      mkdirSync(temporary);
      for (const [name, path] of Object.entries(programs)) symlinkSync(path, join(temporary, name));
    });
    process.env["PATH"] = `${folder}:${process.env["PATH"] ?? ""}`;
  } catch (thrown) {
    return `containerd, which cannot be built: ${String(thrown)}`;
  }
  const problems = OwnContainerd.check();
  return problems.length === 0 ? undefined : problems.map(({ problem }) => problem).join(", ");
}
