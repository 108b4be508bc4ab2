/**
 * Control planes of other versions than the one that go.mod pins: `VMLET_TEST_KUBERNETES=1.37.1` has the e2e suites run
 * against that one. Nothing of it lies in the repository: its module is written from what Kubernetes' own says of its
 * dependencies, and Go's checksum database vouches for what is loaded.
 */
import { copyFile, mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { runCommand } from "./exec.ts";

/**
 * The version that the environment asks for, or the pinned one.
 *
 * @throws Error when it is not of the form 1.X.Y
 */
export function wantedKubernetes(pinned: string, env: NodeJS.ProcessEnv = process.env): string {
  const wanted = env["VMLET_TEST_KUBERNETES"];
  if (wanted === undefined || wanted === "") return pinned;
  if (!/^1\.\d{1,3}\.\d{1,3}$/.test(wanted))
    throw new Error(`VMLET_TEST_KUBERNETES is "${wanted}"; a version is 1.X.Y, without a v: ${pinned}`);
  return wanted;
}

/**
 * The go.mod of a control plane of this version. Kubernetes' own replaces its staging modules by folders of its repository;
 * whoever depends on it has to name what was published from them.
 *
 * @param kubernetesGoMod go.mod of `k8s.io/kubernetes` of that version
 */
export function controlPlaneGoMod(version: string, kubernetesGoMod: string): string {
  const staging = `v0.${version.split(".").slice(1).join(".")}`;
  const lines = kubernetesGoMod.split("\n").map((line) => line.trim());
  const required = (module: string) => {
    const line = lines.find((text) => text.startsWith(`${module} v`));
    if (line === undefined) throw new Error(`k8s.io/kubernetes ${version} does not require ${module}`);
    return line.split(" ").slice(0, 2).join(" ");
  };
  const replaced = lines.flatMap((line) => {
    const [module] = line.replace(/^replace /, "").split(" => ./staging/");
    return module !== undefined && line.includes(" => ./staging/") ? [module] : [];
  });
  const go = lines.find((line) => line.startsWith("go "));
  return [
    "module vmlet.dev/controlplane",
    ...(go === undefined ? [] : [go]),
    "require (",
    `\tk8s.io/kubernetes v${version}`,
    `\tk8s.io/component-base ${staging}`,
    `\t${required("github.com/spf13/cobra")}`,
    `\t${required("go.etcd.io/etcd/server/v3")}`,
    ")",
    ...replaced.map((module) => `replace ${module} => ${module} ${staging}`),
    "",
  ].join("\n");
}

/** Calls `build` with a folder that holds the module of that control plane, which is gone afterwards. */
export async function withControlPlaneModule(
  version: string,
  main: string,
  build: (folder: string) => Promise<void>,
): Promise<void> {
  const folder = await mkdtemp(join(tmpdir(), "vmlet-controlplane-"));
  try {
    const { stdout } = await runCommand("go", ["mod", "download", "-json", `k8s.io/kubernetes@v${version}`], {
      cwd: folder,
    });
    const { GoMod } = JSON.parse(stdout) as { GoMod: string };
    await writeFile(join(folder, "go.mod"), controlPlaneGoMod(version, await readFile(GoMod, "utf8")));
    await copyFile(main, join(folder, "main.go"));
    await build(folder);
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}
