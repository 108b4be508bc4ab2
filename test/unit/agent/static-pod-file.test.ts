/** What a file of static pods becomes, and what is said of one that becomes none. */
import { describe, expect, test } from "vitest";
import { mirrorOf, mirrorPod, readStaticPod } from "../../../src/agent/static-pod-file.ts";
import type { Pod } from "../../../src/kube/wire.ts";

const at = { file: "web.yaml", path: "/static/web.yaml", nodeName: "Burst-0" };
const text = (spec: object = {}, metadata: object = {}) =>
  JSON.stringify({
    apiVersion: "v1",
    kind: "Pod",
    metadata: { name: "web", ...metadata },
    spec: { containers: [{ name: "main", image: "a:1" }], ...spec },
  });

function podOf(content: string, place = at) {
  const read = readStaticPod(content, place);
  if (read.kind !== "pod") throw new Error(read.fault);
  return read.pod;
}
function faultOf(content: string): string {
  const read = readStaticPod(content, at);
  if (read.kind === "pod") throw new Error(`became ${read.pod.name}`);
  return read.fault;
}

describe("a pod", () => {
  test("is named after its node, bound to it, owned by it alone and marked as a mirror", () => {
    const pod = podOf(text({ priorityClassName: "system-node-critical" }, { labels: { app: "web" }, uid: "x" }));
    const { hash } = pod;
    expect(mirrorPod(pod, { name: at.nodeName, uid: "u1" })).toEqual({
      apiVersion: "v1",
      kind: "Pod",
      metadata: {
        name: "web-burst-0",
        namespace: "default",
        labels: { app: "web" },
        annotations: {
          "kubernetes.io/config.source": "file",
          "kubernetes.io/config.hash": hash,
          "kubernetes.io/config.mirror": hash,
          "vmlet.dev/static-pod-file": "web.yaml",
        },
        ownerReferences: [{ apiVersion: "v1", kind: "Node", name: "Burst-0", uid: "u1", controller: true }],
      },
      spec: {
        containers: [{ name: "main", image: "a:1" }],
        priorityClassName: "system-node-critical",
        nodeName: "Burst-0",
        tolerations: [{ operator: "Exists", effect: "NoExecute" }],
      },
    });
  });

  test("keeps its namespace and tolerations", () => {
    const pod = podOf(text({ tolerations: [{ key: "a", operator: "Exists" }] }, { namespace: "kube-system" }));
    expect(pod.namespace).toBe("kube-system");
    expect(pod.spec).toMatchObject({
      tolerations: [
        { key: "a", operator: "Exists" },
        { operator: "Exists", effect: "NoExecute" },
      ],
    });
  });

  test("cannot give itself the marks of another", () => {
    const annotations = { "kubernetes.io/config.mirror": "0", "vmlet.dev/static-pod-file": "other", mine: "1" };
    const pod = podOf(text({}, { annotations }));
    expect(pod.metadata).toMatchObject({
      annotations: { mine: "1", "kubernetes.io/config.mirror": pod.hash, "vmlet.dev/static-pod-file": "web.yaml" },
    });
  });

  test("has another hash for each other content, path and node, and for another order of keys the same", () => {
    const one = podOf("apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: m, image: i}]}");
    const same = podOf("kind: Pod\napiVersion: v1\nspec: {containers: [{image: i, name: m}]}\nmetadata: {name: a}");
    expect(same.hash).toBe(one.hash);
    const others = [
      podOf(text()),
      podOf(text({ containers: [{ name: "main", image: "a:2" }] })),
      podOf(text(), { ...at, path: "/static/other.yaml" }),
      podOf(text(), { ...at, nodeName: "burst-1" }),
    ];
    expect(new Set([one, ...others].map(({ hash }) => hash)).size).toBe(5);
  });
});

describe("YAML means what it does to a kubelet", () => {
  const read = (line: string) =>
    (podOf(`apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec:\n  x: ${line}\n`).spec as { x: unknown }).x;
  test.each([
    ["an octal number", "0400", 256],
    ["an octal number of YAML 1.2", "0o400", 256],
    ["a boolean", "yes", true],
    ["a time of day", "10:30", "10:30"],
    ["a date", "2001-01-01", "2001-01-01"],
    [
      "a merged mapping",
      "{base: &base {a: 1, b: 1}, made: {<<: *base, b: 2}}",
      { base: { a: 1, b: 1 }, made: { a: 1, b: 2 } },
    ],
    ["text in quotes", '"0400"', "0400"],
  ])("%s", (_, line, value) => {
    expect(read(line)).toEqual(value);
  });

  test("whichever version the file names", () => {
    expect(podOf(`%YAML 1.2\n---\n${text().replace("{", '{"x": 1, ')}`).name).toBe("web-burst-0");
    const spec = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {x: 0400}";
    expect(podOf(`%YAML 1.2\n---\n${spec}`).spec).toMatchObject({ x: 256 });
  });
});

describe("no pod is made of", () => {
  test.each([
    ["an empty file", "", "holds no pod"],
    ["a list", "[]", "holds no pod"],
    ["text that is no YAML", "a: [", "is no YAML"],
    ["an alias of nothing", "a: *b", "is no YAML"],
    ["a key that is there twice", "a: {b: 1, b: 2}", "line 1, column 11: is no YAML: the mapping has this key twice"],
    ["two documents", "a: 1\n---\nb: 2", "holds several documents"],
    ["another kind", "apiVersion: apps/v1\nkind: Deployment", "apiVersion, kind: must be v1 and Pod"],
    ["a nameless pod", text({}, { name: "" }), "metadata.name: is required"],
    ["a pod without specification", "apiVersion: v1\nkind: Pod\nmetadata: {name: a}", "spec: is required"],
    ["labels that are a list", text({}, { labels: [] }), "metadata.labels: must be a mapping"],
    ["a namespace that is a number", text({}, { namespace: 1 }), "metadata.namespace: must be a name"],
    ["tolerations that are no list", text({ tolerations: 1 }), "spec.tolerations: must be a list"],
  ])("%s", (_, content, words) => {
    expect(faultOf(content)).toContain(words);
  });

  test("a bomb of aliases", () => {
    const levels = Array.from({ length: 12 }, (_, n) => `l${n}: &l${n} [${`*l${n - 1},`.repeat(n === 0 ? 0 : 9)} x]`);
    expect(faultOf(levels.join("\n"))).toContain("is no YAML");
  });

  test("very many keys, within the time of a lease", { timeout: 20_000 }, () => {
    // Half a minute where each key is compared with each.
    const keys = Array.from({ length: 30_000 }, (_, n) => `k${n}: 1`);
    expect(faultOf(keys.join("\n"))).toContain("must be v1 and Pod");
  });

  test.each(['password: "hunter2\nother: [', "password: *hunter2", "password: |hunter2", "password: !hunter2!a b"])(
    "a file whose fault is beside a secret, with the secret in the words: %s",
    (content) => {
      expect(faultOf(content)).not.toContain("hunter2");
    },
  );

  const container = (extra: object) => ({ containers: [{ name: "m", image: "i", ...extra }] });
  const volume = (source: object) => ({ volumes: [{ name: "v", ...source }] });
  test.each([
    ["spec.serviceAccountName", "service accounts", { serviceAccountName: "default" }],
    ["spec.serviceAccount", "service accounts", { serviceAccount: "default" }],
    ["spec.imagePullSecrets", "secrets", { imagePullSecrets: [{ name: "s" }] }],
    ["spec.resourceClaims", "resource claims", { resourceClaims: [{ name: "s" }] }],
    ["spec.containers[0].envFrom[0].secretRef", "secrets", container({ envFrom: [{ secretRef: { name: "s" } }] })],
    [
      "spec.containers[0].env[1].valueFrom.configMapKeyRef",
      "configMaps",
      container({ env: [{ name: "a" }, { name: "b", valueFrom: { configMapKeyRef: { name: "s", key: "k" } } }] }),
    ],
    [
      "spec.initContainers[0].envFrom[0].configMapRef",
      "configMaps",
      { initContainers: [{ envFrom: [{ configMapRef: { name: "s" } }] }] },
    ],
    ["spec.volumes[0].configMap", "configMaps", volume({ configMap: { name: "s" } })],
    ["spec.volumes[0].secret", "secrets", volume({ secret: { secretName: "s" } })],
    [
      "spec.volumes[0].persistentVolumeClaim",
      "persistentVolumeClaims",
      volume({ persistentVolumeClaim: { claimName: "s" } }),
    ],
    ["spec.volumes[0].ephemeral", "persistentVolumeClaims", volume({ ephemeral: {} })],
    ["spec.volumes[0].csi", "CSI drivers", volume({ csi: { driver: "d" } })],
    ["spec.volumes[0].iscsi.secretRef", "secrets", volume({ iscsi: { secretRef: { name: "s" } } })],
    [
      "spec.volumes[0].projected.sources[1].serviceAccountToken",
      "service accounts",
      volume({ projected: { sources: [{ downwardAPI: {} }, { serviceAccountToken: { path: "t" } }] } }),
    ],
  ])("one that refers by %s to other objects", (field, what, spec) => {
    expect(faultOf(text(spec)).startsWith(`${field}: a static pod may not refer to ${what},`)).toBe(true);
  });
});

test("volumes of the machine's own may be had", () => {
  const volumes = [
    { name: "a" },
    { name: "b", emptyDir: {} },
    { name: "c", hostPath: { path: "/x" } },
    { name: "d", projected: { sources: [{ downwardAPI: { items: [] } }] } },
  ];
  expect(readStaticPod(text({ volumes }), at).kind).toBe("pod");
});

test("only a pod that the node itself owns is one of its own", () => {
  const made = mirrorPod(podOf(text()), { name: at.nodeName, uid: "u1" }) as Pod;
  expect(mirrorOf(made, at.nodeName)?.file).toBe("web.yaml");
  expect(mirrorOf(made, "burst-1")).toBeUndefined();
  expect(mirrorOf({ ...made, metadata: { ...made.metadata, ownerReferences: [] } }, at.nodeName)).toBeUndefined();
});
