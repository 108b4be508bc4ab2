/**
 * The images that the tests name, made here: the programs are built from Kubernetes' sources, the rest is busybox and
 * programs of this host (Debian). Stand-ins, none of which a test can tell from the original by what it does:
 *
 * - `nginx` serves an empty page on port 80 with agnhost; the tests only want another image that goes on running;
 * - `sample-apiserver` is of the release that the suite is of, where the original is older: that old ones are served by
 *   newer API servers is Kubernetes' promise and none of a node's;
 * - `hostpathplugin` has the proxy of the CSI driver hostpath alone, for the tests of Dynamic Resource Allocation;
 * - `kitten` says that it is Alpine Linux, as the original, because the test of image volumes looks for those words.
 */
import { readFile, realpath } from "node:fs/promises";
import { basename, dirname, join } from "node:path";
import { findTool } from "../../../providers/local/host/command.ts";
import {
  buildAgnhost,
  buildHostsDns,
  buildEtcd,
  buildHelloPopulator,
  buildKubernetesSuite,
  buildNonewprivs,
  buildRegression74839,
  buildSampleApiServer,
  buildSampleDevicePlugin,
  buildSocketProxy,
  kubernetesSource,
} from "../../e2e/harness/build.ts";
import { cacheKey, cached } from "../../e2e/harness/cache.ts";
import { runCommand } from "../../e2e/harness/exec.ts";
import { busyboxImage, type TarEntry, type TestImage, type TestRegistry } from "../../support/registry.ts";
import { registryFiles } from "./registry-files.ts";

/** What makes the suite and the programs of its images, for `runInside`. */
export const suitePrograms = [
  buildKubernetesSuite,
  buildAgnhost,
  buildHostsDns,
  buildEtcd,
  buildNonewprivs,
  buildSampleApiServer,
  buildPause,
] as const;

/** What tests want besides that are tagged neither [Conformance] nor [NodeConformance]. */
export const untaggedPrograms = [buildRegression74839, buildSampleDevicePlugin, buildSocketProxy] as const;

/** What those of storage want besides. */
export const storagePrograms = [buildHelloPopulator] as const;

const SOURCES = "registry.k8s.io";
/** The suite's manifests name them, and its list of images does not. */
const UNLISTED = [`${SOURCES}/e2e-test-images/sample-device-plugin:1.8.0`];

/** For `KUBE_TEST_REPO_LIST`: the registries that the tests pull from, in terms of ours. */
export function repositoryList(host: string): Record<string, string> {
  return {
    promoterE2eRegistry: `${host}/e2e-test-images`,
    gcRegistry: host,
    gcEtcdRegistry: host,
    buildImageRegistry: `${host}/build-image`,
    sigStorageRegistry: `${host}/sig-storage`,
    cloudProviderGcpRegistry: `${host}/cloud-provider-gcp`,
    dockerLibraryRegistry: `${host}/library`,
  };
}

/**
 * Makes and pushes those of the images that can be made here.
 *
 * @param names as `e2e.test --list-images` prints them
 * @param besides recipes of images that only some tests name
 * @returns the names that were pushed
 */
export async function pushImages(
  registry: TestRegistry,
  names: readonly string[],
  besides: Recipes = {},
): Promise<string[]> {
  const made = new Map<string, Promise<TestImage>>();
  const pushed: string[] = [];
  for (const name of [...names, ...UNLISTED]) {
    const path = name.slice(name.indexOf("/") + 1);
    const program = basename(path).replace(/:.*$/, "");
    const make = RECIPES[program] ?? besides[program];
    if (!make || !(name.startsWith(`${registry.host}/`) || name.startsWith(`${SOURCES}/`))) continue;
    const image = made.get(program) ?? make();
    made.set(program, image);
    await registry.push(path, await image);
    pushed.push(name);
  }
  return pushed;
}

/**
 * Used by the group `network` only, so they may be missing: of bind9-dnsutils, netcat-openbsd, iperf and wget (Debian's
 * busybox, linked statically, crashes where it looks a name up).
 */
const networkPrograms = ["dig", "nc", "iperf", "wget"].filter((name) => findTool(name) !== undefined);

type Recipes = Readonly<Record<string, () => Promise<TestImage>>>;

const RECIPES: Recipes = {
  agnhost: async () => agnhostImage({ Entrypoint: ["/agnhost"], Cmd: ["pause"] }),
  // Debian's busybox drops variables whose names are not identifiers; the image's own hands them on, as bash does. So a
  // pod that runs `sh` gets bash, and one that runs `/bin/sh`, the original's only one, gets busybox, whose messages
  // tests look for.
  busybox: async () =>
    busyboxImage(
      [...users([]), ...(await hostPrograms(["bash"])), { path: "usr/bin/sh", type: "symlink", link: "/usr/bin/bash" }],
      { Cmd: ["sh"] },
    ),
  etcd: () => programImage("usr/local/bin/etcd", buildEtcd()),
  "sample-apiserver": () => programImage("sample-apiserver", buildSampleApiServer(), ["/sample-apiserver"]),
  nginx: async () => agnhostImage({ Cmd: ["/agnhost", "test-webserver"] }),
  kitten: () => pictureImage("kitten", [{ path: "etc/os-release", content: 'NAME="Alpine Linux"\nID=alpine\n' }]),
  nautilus: () => pictureImage("nautilus"),
  nonewprivs: async () =>
    busyboxImage(
      [
        ...users([]),
        ...folders(["usr", "usr/local", "usr/local/bin"]),
        { path: "usr/local/bin/nnp", content: await readFile(await buildNonewprivs()), mode: 0o6755 },
      ],
      { Cmd: ["nnp"] },
    ),
  nonroot: async () => busyboxImage(users([]), { Cmd: ["sh"], User: "1234" }),
  pause: pauseImage,
  "glibc-dns-testing": async () =>
    busyboxImage(
      [
        ...users([]),
        ...(await hostPrograms(["bash", "getent", "hostname", "dd", ...networkPrograms])),
        // As in the image: its own shell runs the programs beside it. busybox' dd knows no `nocache`.
        { path: "bin/sh", type: "symlink", link: "/usr/bin/bash" },
      ],
      { Cmd: ["sleep", "3600"] },
    ),
};

/** Of tests of storage. */
export const storageImages: Recipes = {
  "hello-populator": () => programImage("hello-populator", buildHelloPopulator(), ["/hello-populator"]),
};

/** Of tests that are tagged neither way. */
export const untaggedImages: Recipes = {
  hostpathplugin: async () =>
    busyboxImage([
      ...users([]),
      { path: "hostpathplugin", content: await readFile(await buildSocketProxy()), mode: 0o755 },
    ]),
  "distroless-iptables": async () => busyboxImage(await hostPrograms(["conntrack"])),
  // Its devices are files in /tmp.
  "sample-device-plugin": async () =>
    busyboxImage(
      [
        { path: "tmp", type: "directory", mode: 0o1777 },
        { path: "sampledeviceplugin", content: await readFile(await buildSampleDevicePlugin()), mode: 0o755 },
      ],
      { Entrypoint: ["/sampledeviceplugin", "-alsologtostderr"] },
    ),
  "regression-issue-74839": () =>
    programImage("regression-issue-74839", buildRegression74839(), ["/regression-issue-74839"]),
};

async function pauseImage(): Promise<TestImage> {
  return {
    layers: [[{ path: "pause", content: await readFile(await buildPause()), mode: 0o755 }]],
    config: { Entrypoint: ["/pause"], User: "65535:65535" },
  };
}

async function agnhostImage(
  config: NonNullable<TestImage["config"]>,
  extra: readonly TarEntry[] = [],
): Promise<TestImage> {
  const porter = await kubernetesSource("test/images/agnhost/porter");
  const served = registryFiles("pause", "testing", await pauseImage());
  return busyboxImage(
    [
      ...users(
        ["user-defined-in-image:x:1000:1000::/home:/bin/sh"],
        ["user-defined-in-image:x:1000:", "group-defined-in-image:x:50000:user-defined-in-image"],
      ),
      { path: "uploads", type: "directory", mode: 0o755 },
      { path: "var", type: "directory", mode: 0o755 },
      { path: "var/tmp", type: "directory", mode: 0o1777 },
      { path: "agnhost", content: await readFile(await buildAgnhost()), mode: 0o755 },
      { path: "coredns", content: await readFile(await buildHostsDns()), mode: 0o755 },
      { path: "agnhost-2", type: "symlink", link: "agnhost" },
      { path: "localhost.crt", content: await readFile(join(porter, "localhost.crt")) },
      { path: "localhost.key", content: await readFile(join(porter, "localhost.key")) },
      ...folders(parentsOf(served.map(({ path }) => path))),
      ...served,
      ...(await hostPrograms(["bash", "nsenter", "curl", "ss", "ipcs", "getent", "printenv", ...networkPrograms])),
      // The image's own shell runs the programs beside it. Debian's busybox has applets of their names in itself, and
      // `nc` there knows no `-t`; its `nsenter` runs its own `sh` and `losetup` in place of the host's.
      { path: "bin/sh", type: "symlink", link: "/usr/bin/bash" },
      ...extra,
    ],
    config,
  );
}

/** agnhost that serves a picture and its name. */
async function pictureImage(name: string, extra: readonly TarEntry[] = []): Promise<TestImage> {
  const html = await kubernetesSource(`test/images/${name}/html`);
  const files = [`${name}.jpg`, "data.json"].map(async (path) => ({ path, content: await readFile(join(html, path)) }));
  return agnhostImage({ Entrypoint: ["/agnhost"], Cmd: ["test-webserver"] }, [...(await Promise.all(files)), ...extra]);
}

/** Nothing but a program that is linked statically. */
export async function programImage(path: string, program: Promise<string>, entrypoint?: string[]): Promise<TestImage> {
  const content = await readFile(await program);
  return {
    layers: [[...folders(parentsOf([path])), { path, content, mode: 0o755 }]],
    config: entrypoint === undefined ? {} : { Entrypoint: entrypoint },
  };
}

/** /etc/passwd and /etc/group as in the image `busybox`, and what the image adds. */
function users(passwd: readonly string[], group: readonly string[] = []): TarEntry[] {
  const lines = (each: readonly string[]) => `${each.join("\n")}\n`;
  return [
    {
      path: "etc/passwd",
      content: lines([
        "root:x:0:0:root:/root:/bin/sh",
        "daemon:x:1:1:daemon:/usr/sbin:/bin/false",
        "www-data:x:33:33:www-data:/var/www:/bin/false",
        "nobody:x:65534:65534:nobody:/home:/bin/false",
        ...passwd,
      ]),
    },
    { path: "etc/group", content: lines(["root:x:0:", "daemon:x:1:", "www-data:x:33:", "nobody:x:65534:", ...group]) },
  ];
}

function folders(paths: readonly string[]): TarEntry[] {
  return paths.map((path) => ({ path, type: "directory", mode: 0o755 }));
}

/** Programs of this host with the shared libraries that they load, each where its loader looks for it. */
export async function hostPrograms(names: readonly string[]): Promise<TarEntry[]> {
  const files = new Set<string>();
  const entries: TarEntry[] = [];
  for (const name of names) {
    const program = findTool(name);
    if (program === undefined)
      throw new Error(`the test images need ${name}, which is not on the PATH: install its Debian package`);
    entries.push({ path: `usr/bin/${name}`, content: await readFile(program), mode: 0o755 });
    const { stdout } = await runCommand("ldd", [await realpath(program)]);
    for (const [path] of stdout.matchAll(/\/\S+(?= \()/g)) files.add(path);
  }
  if (names.includes("bash")) entries.push({ path: "bin/bash", type: "symlink", link: "/usr/bin/bash" });
  for (const path of files) entries.push({ path: path.slice(1), content: await readFile(path), mode: 0o755 });
  return [...folders(parentsOf(entries.map(({ path }) => path))), ...entries];
}

/** Every folder above the paths, outermost first. */
function parentsOf(paths: readonly string[]): string[] {
  const parents = new Set<string>();
  for (const path of paths) for (let each = dirname(path); each !== "."; each = dirname(each)) parents.add(each);
  return [...parents].toSorted();
}

/** Kubernetes' own pause.c, linked statically. */
async function buildPause(): Promise<string> {
  const source = await kubernetesSource("build/pause/linux/pause.c");
  return cached(`pause-${cacheKey([await readFile(source), process.arch])}`, async (temporary) => {
    await runCommand("gcc", ["-Os", "-Wall", "-static", "-o", temporary, source]);
  });
}
