/**
 * What the containers of the cases are made of: on engine `process` programs of this host, on an engine that runs images
 * an image with the same programs.
 */
import { execFileSync } from "node:child_process";
import { readFile } from "node:fs/promises";
import { type ContainerEngine, type ContainerEngineOptions, engineOnThisHost } from "../../support/engines.ts";
import { testNetwork } from "../../support/host.ts";
import { busyboxImage, startRegistry, type TarEntry, type TestRegistry } from "../../support/registry.ts";
import type { Json } from "../harness/client.ts";

export type EngineConfig = { type: ContainerEngine } & Pick<ContainerEngineOptions, "network" | "images">;

interface Workload {
  /** Has a shell and its commands. */
  image: string;
  /** Path of Node in a container. */
  node: string;
  /** Containers see this host's folders under their own paths. */
  seesHost: boolean;
}

let current: Workload = { image: "busybox", node: process.execPath, seesHost: true };

/** Of the environment that this test file has started. */
export const workload = (): Readonly<Workload> => current;

/**
 * A folder that all containers of a pod share and that outlives each of them.
 * @param hostDir where it is when containers see this host's folders
 */
export function scratch(hostDir: string): { dir: string; pod: Json; container: Json } {
  if (current.seesHost) return { dir: hostDir, pod: {}, container: {} };
  return {
    dir: "/scratch",
    pod: { volumes: [{ name: "scratch", emptyDir: {} }] },
    container: { volumeMounts: [{ name: "scratch", mountPath: "/scratch" }] },
  };
}

/**
 * Has the cases of this test file run on an engine that runs images.
 * @throws Error when this host lacks something for it
 */
export async function useEngine(type: ContainerEngine): Promise<{ engine: EngineConfig; stop(): Promise<void> }> {
  const { missing } = await engineOnThisHost(type);
  if (missing.length > 0) throw new Error(`engine ${type} cannot run on this host: ${missing.join(", ")}`);
  const registry = await startRegistry();
  await useImage(registry);
  const { dir: _dir, ...network } = testNetwork("");
  return {
    engine: { type, network, images: { insecureRegistries: [registry.host] } },
    stop: () => registry.stop(),
  };
}

/** The workload becomes an image of this registry. @param host where machines find it, if elsewhere */
export async function useImage(registry: TestRegistry, host = registry.host): Promise<void> {
  await registry.push("t/busybox:1", await busyboxImage(await nodeWithLibraries()));
  current = { image: `${host}/t/busybox:1`, node: "/bin/node", seesHost: false };
}

async function nodeWithLibraries(): Promise<TarEntry[]> {
  const linked = execFileSync("ldd", [process.execPath], { encoding: "utf8" });
  const libraries = [...linked.matchAll(/(\/\S+) \(0x/g)].map(([, path]) => path!);
  const folders = new Set(
    libraries.flatMap((path) => path.split("/").map((_, index, parts) => parts.slice(1, index).join("/"))),
  );
  return [
    ...[...folders].filter(Boolean).map((path): TarEntry => ({ path, type: "directory", mode: 0o755 })),
    { path: "bin/node", content: await readFile(process.execPath), mode: 0o755 },
    ...(await Promise.all(
      libraries.map(async (path) => ({ path: path.slice(1), content: await readFile(path), mode: 0o755 })),
    )),
  ];
}
