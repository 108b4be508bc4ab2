/** containerd for tests: built once, put on the PATH of this process under the names that it is looked for by. */
import { mkdirSync, symlinkSync } from "node:fs";
import { join } from "node:path";
import { OwnContainerd } from "../../providers/local/engines/cri/own-containerd.ts";
import { buildContainerd, buildContainerdShim, buildRunc } from "../e2e/harness/build.ts";
import { cached } from "../e2e/harness/cache.ts";

/** Why tests with a containerd of their own cannot run here; undefined when they can. */
export async function missingForContainerd(): Promise<string | undefined> {
  try {
    process.env["PATH"] = `${await containerdPrograms()}:${process.env["PATH"] ?? ""}`;
  } catch (thrown) {
    return `containerd, which cannot be built: ${String(thrown)}`;
  }
  const problems = OwnContainerd.check();
  return problems.length === 0 ? undefined : problems.map(({ problem }) => problem).join(", ");
}

/** A folder with links to containerd, its shim and runc. @throws when they cannot be built */
export async function containerdPrograms(): Promise<string> {
  const programs = { containerd: await buildContainerd(), "containerd-shim-runc-v2": await buildContainerdShim() };
  return await folderOf({ ...programs, ...(await newestRunc()) });
}

/** Why there is no runc newer than the host's, for tests that need one; undefined when there is. */
export async function missingForRunc(): Promise<string | undefined> {
  return await buildRunc().then(
    () => undefined,
    (thrown: unknown) => `runc 1.3, which cannot be built: ${String(thrown)}`,
  );
}

/** Without it the host's own has to do, which may have no user namespaces. */
async function newestRunc(): Promise<{ runc?: string }> {
  try {
    return { runc: await buildRunc() };
  } catch {
    return {};
  }
}

/** @param programs by the names that they are to have there */
async function folderOf(programs: Readonly<Record<string, string>>): Promise<string> {
  const names = Object.values(programs).map((path) => path.slice(-16));
  return await cached(`containerd-bin-${names.join("-")}`, async (temporary) => {
    mkdirSync(temporary);
    for (const [name, path] of Object.entries(programs)) symlinkSync(path, join(temporary, name));
  });
}
