/** `kubectl vmlet` as krew would install it: the manifest by krew's rules, and the archive that it names, unpacked and linked as krew does. */
import { execFile, execFileSync } from "node:child_process";
import { createHash } from "node:crypto";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, statSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { basename, dirname, join } from "node:path";
import { promisify } from "node:util";
import { afterAll, beforeAll, expect, test } from "vitest";
import { parse } from "yaml";
import { z } from "zod";
import { packForKrew } from "../../helm/krew.ts";
import { runDevCluster } from "./devcluster/support.ts";

const { version } = JSON.parse(readFileSync(join(import.meta.dirname, "../../package.json"), "utf8")) as {
  version: string;
};
let folder: string;
let archive: string;
let text: string;
/** What is on the PATH of who installed it. */
let bin: string;

/** krew: `internal/index/validation`, and what its index asks for besides. */
const selector = z.strictObject({
  matchExpressions: z
    .array(
      z.strictObject({ key: z.enum(["os", "arch"]), operator: z.literal("In"), values: z.array(z.string()).min(1) }),
    )
    .min(1),
});
const schema = z.strictObject({
  apiVersion: z.literal("krew.googlecontainertools.github.com/v1alpha2"),
  kind: z.literal("Plugin"),
  metadata: z.strictObject({ name: z.string().regex(/^[\w-]+$/) }),
  spec: z.strictObject({
    version: z.string().regex(/^v\d+\.\d+\.\d+(-[\w.]+)?$/),
    homepage: z.url(),
    shortDescription: z
      .string()
      .min(1)
      .max(50)
      .regex(/^[^\r\n]+$/),
    description: z.string(),
    caveats: z.string(),
    platforms: z
      .array(
        z.strictObject({
          selector,
          uri: z.url().regex(/^https:\/\/.*\.tar\.gz$/),
          sha256: z.string().regex(/^[a-f0-9]{64}$/),
          bin: z.string().min(1),
        }),
      )
      .min(1),
  }),
});
const manifest = () => schema.parse(parse(text));

beforeAll(async () => {
  folder = mkdtempSync(join(tmpdir(), "vmlet-krew-"));
  const packed = await packForKrew(join(folder, "packed"));
  archive = packed.archive;
  text = readFileSync(packed.manifest, "utf8");
  expect(basename(packed.manifest)).toBe("vmlet.yaml");
  const store = join(folder, "store");
  bin = join(folder, "bin");
  for (const each of [store, bin]) mkdirSync(each);
  execFileSync("tar", ["-xzf", archive, "-C", store]);
  const [platform] = manifest().spec.platforms;
  symlinkSync(join(store, platform!.bin), join(bin, "kubectl-vmlet"));
  symlinkSync(join(store, "dist/src/cli/kubectl_complete-vmlet.js"), join(bin, "kubectl_complete-vmlet"));
}, 120_000);
afterAll(() => rmSync(folder, { recursive: true }));

const run = async (program: string, ...words: string[]): Promise<string> => {
  const { PATH = "" } = process.env;
  const env = { ...process.env, PATH: `${dirname(process.execPath)}:${PATH}` };
  return (await promisify(execFile)(join(bin, program), words, { env })).stdout;
};

test("the manifest is one that krew takes, of this version", () => {
  const { metadata, spec } = manifest();
  expect([metadata.name, spec.version]).toEqual(["vmlet", `v${version}`]);
  expect(text).not.toMatch(/VERSION|SHA256/);
});

test("the manifest names the archive that lies beside it, with its sum", () => {
  for (const { uri, sha256 } of manifest().spec.platforms) {
    expect(uri.endsWith(`/v${version}/${basename(archive)}`)).toBe(true);
    expect(sha256).toBe(createHash("sha256").update(readFileSync(archive)).digest("hex"));
  }
});

test("the archive has the licence, and nothing that is for one kind of machine", () => {
  const entries = execFileSync("tar", ["-tzf", archive], { encoding: "utf8", maxBuffer: 1 << 26 }).split("\n");
  expect(entries).toContain("./LICENSE");
  expect(entries.filter((entry) => /\.(node|so|dylib)$|\/bin\/node$/.test(entry))).toEqual([]);
});

test("the plugin runs by the name that krew gives it", async () => {
  expect(statSync(join(bin, "kubectl-vmlet")).mode & 0o111).not.toBe(0);
  expect(await run("kubectl-vmlet", "version")).toContain(version);
  expect(await run("kubectl-vmlet", "--help")).toContain("Usage: kubectl vmlet");
});

test("the plugin completes its commands", async () => {
  expect(await run("kubectl_complete-vmlet", "ma")).toMatch(/^machines\b[^]*:4\n$/);
});

test("the plugin speaks to a cluster with what is in the archive alone", async () => {
  await using dev = await runDevCluster();
  const kubeconfig = join(folder, "kubeconfig");
  writeFileSync(kubeconfig, dev.cluster.kubeConfigYaml, { mode: 0o600 });
  expect(JSON.parse(await run("kubectl-vmlet", "machines", "--kubeconfig", kubeconfig, "-o", "json"))).toEqual(
    expect.anything(),
  );
});
