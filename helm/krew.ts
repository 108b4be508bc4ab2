/**
 * Packs `kubectl vmlet` for krew: `npm run krew -- FOLDER`. In FOLDER:
 *
 *     kubectl-vmlet-vVERSION.tar.gz   the compiled program and what it needs, for any platform that has Node.js
 *     vmlet.yaml                      the manifest: krew.yaml with the version and the archive's SHA-256
 *
 * Reproducible: the same checkout and lock file give the same bytes.
 */
import { execFileSync } from "node:child_process";
import { createHash } from "node:crypto";
import { writeFileSync } from "node:fs";
import { chmod, cp, mkdir, readFile, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { copy, copyPackage, copyPackageJson, generatedModules, portablePackages, removeIdle } from "./assemble.ts";

const repository = join(import.meta.dirname, "..");

/** @param folder is replaced */
export async function packForKrew(folder: string): Promise<{ archive: string; manifest: string }> {
  const { version } = JSON.parse(await readFile(join(repository, "package.json"), "utf8")) as { version: string };
  const tree = join(folder, "tree");
  await rm(folder, { recursive: true, force: true });
  await mkdir(tree, { recursive: true });
  await fill(tree);
  const archive = join(folder, `kubectl-vmlet-v${version}.tar.gz`);
  pack(tree, archive);
  await rm(tree, { recursive: true });
  const sha256 = createHash("sha256")
    .update(await readFile(archive))
    .digest("hex");
  const template = await readFile(join(import.meta.dirname, "krew.yaml"), "utf8");
  // Krew wants the file to be called as the plugin is.
  const manifest = join(folder, "vmlet.yaml");
  const body = template.slice(template.indexOf("apiVersion:"));
  await writeFile(manifest, body.replaceAll("VERSION", version).replaceAll("SHA256", sha256));
  return { archive, manifest };
}

async function fill(tree: string): Promise<void> {
  const dist = join(tree, "dist");
  execFileSync(
    process.execPath,
    [join(repository, "node_modules/typescript/bin/tsc"), "-p", "tsconfig.build.json", "--outDir", dist],
    { cwd: repository, stdio: ["ignore", "inherit", "inherit"] },
  );
  await removeIdle(dist);
  await cp(join(repository, "src/ui/page"), join(dist, "src/ui/page"), { recursive: true });
  for (const file of ["LICENSE", "src/provider/contract/openapi.yaml"])
    await copy(join(repository, file), join(tree, file));
  for (const generated of await generatedModules()) await copy(join(repository, generated), join(dist, generated));
  for (const name of await portablePackages()) await copyPackage(name, tree);
  await copyPackageJson(tree);
  for (const name of ["main", "kubectl-vmlet", "kubectl_complete-vmlet"])
    await chmod(join(dist, `src/cli/${name}.js`), 0o755);
}

/** GNU tar, whose options make the same bytes of the same files, by any packer at any time. */
function pack(tree: string, archive: string): void {
  const sameForAll = ["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--mtime=@0", "--mode=go=rX"];
  const tar = execFileSync("tar", [...sameForAll, "--format=ustar", "-cf", "-", "-C", tree, "."], {
    maxBuffer: 1024 ** 3,
  });
  const gzip = execFileSync("gzip", ["-9", "-n"], { input: tar, maxBuffer: 1024 ** 3 });
  writeFileSync(archive, gzip);
}

if (process.argv[1] === import.meta.filename) {
  const [, , folder] = process.argv;
  if (folder === undefined) throw new Error("usage: npm run krew -- FOLDER");
  const { archive, manifest } = await packForKrew(folder);
  console.log(`${archive}\n${manifest}`);
}
