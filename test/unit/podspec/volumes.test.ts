import { posix } from "node:path";
import * as fc from "fast-check";
import { describe, expect, test } from "vitest";
import { trustKey, type CertificateBundle, type Lookup, type References } from "../../../src/podspec/types.ts";
import { filesVersion, renderVolume } from "../../../src/podspec/render/volumes.ts";
import { tokenWishes, trustWish, type PodVolume } from "../../../src/podspec/pod-volumes.ts";
import {
  base64,
  configMap,
  found,
  node,
  podWith,
  podWithContainer,
  referencesWith,
  secret,
  type PodSpec,
} from "./fixtures.ts";

function render(
  volume: Omit<PodVolume, "name">,
  references: References = referencesWith({}),
  spec: Partial<PodSpec> = {},
) {
  return renderVolume(podWith(spec, { labels: { b: "2", a: "1" } }), { name: "v", ...volume }, references, node);
}

function files(volume: Omit<PodVolume, "name">, references?: References, spec?: Partial<PodSpec>) {
  const result = render(volume, references, spec);
  if (!result.ok) throw new Error(result.message);
  if (result.volume.type !== "files") throw new Error("not a files volume");
  return result.volume.files.map(({ path, mode, content_b64, ...rest }) => ({
    path,
    mode: mode.toString(8),
    text: Buffer.from(content_b64, "base64").toString(),
    ...rest,
  }));
}

describe("configMap and secret volumes", () => {
  const references = referencesWith({
    configMaps: { c: configMap({ b: "B", a: "A" }, { bin: base64("\u0001") }), gone: { kind: "absent" } },
    secrets: { s: secret({ k: "S" }), gone: { kind: "absent" } },
  });

  test("hold every key with the default mode, binary ones too", () => {
    expect(files({ configMap: { name: "c" } }, references)).toEqual([
      { path: "a", mode: "644", text: "A" },
      { path: "b", mode: "644", text: "B" },
      { path: "bin", mode: "644", text: "\u0001" },
    ]);
  });

  test("hold the items that are named, where and with the mode that is named", () => {
    const items = [
      { key: "k", path: "deep/er/key", mode: 0o400 },
      { key: "k", path: "copy" },
    ];
    expect(files({ secret: { secretName: "s", items, defaultMode: 0o440 } }, references)).toEqual([
      { path: "copy", mode: "440", text: "S" },
      { path: "deep/er/key", mode: "400", text: "S" },
    ]);
  });

  test.each([
    [{ configMap: { name: "gone" } }, 'configmap "gone" not found'],
    [{ secret: { secretName: "gone" } }, 'secret "gone" not found'],
    [
      { configMap: { name: "c", items: [{ key: "no", path: "p" }] } },
      "configmap references non-existent config key: no",
    ],
    [{ secret: { secretName: "s", items: [{ key: "no", path: "p" }] } }, "references non-existent secret key: no"],
    [{ configMap: { name: "c", items: [{ key: "a", path: "../p" }] } }, "invalid path: must not contain '..': ../p"],
  ])("fail with the kubelet's text: %j", (volume, message) => {
    expect(render(volume, references)).toEqual({ ok: false, message });
  });

  test("are empty when they are optional and missing", () => {
    expect(files({ configMap: { name: "gone", optional: true } }, references)).toEqual([]);
  });

  test("leave out optional keys that are missing", () => {
    const items = [
      { key: "no", path: "p" },
      { key: "a", path: "q" },
    ];
    expect(files({ configMap: { name: "c", optional: true, items } }, references).map(({ path }) => path)).toEqual([
      "q",
    ]);
  });

  test("cannot be rendered while the object is not known, optional or not", () => {
    const unknown = referencesWith({ secrets: { s: { kind: "unknown", message: "503" } } });
    expect(render({ secret: { secretName: "s", optional: true } }, unknown).ok).toBe(false);
  });

  test("refuse a file in the place of a directory", () => {
    const items = [
      { key: "a", path: "x" },
      { key: "b", path: "x/y" },
    ];
    expect(render({ configMap: { name: "c", items } }, references)).toEqual({
      ok: false,
      message: "invalid path: x/y: x is a file",
    });
  });
});

describe("downwardAPI volumes", () => {
  test("hold fields and resources", () => {
    const items = [
      { path: "labels", fieldRef: { fieldPath: "metadata.labels" } },
      { path: "cpu", resourceFieldRef: { containerName: "app", resource: "limits.cpu" }, mode: 0o600 },
    ];
    expect(files({ downwardAPI: { items } })).toEqual([
      { path: "cpu", mode: "600", text: "8" },
      { path: "labels", mode: "644", text: 'a="1"\nb="2"' },
    ]);
  });
});

describe("projected volumes", () => {
  const references = referencesWith({
    configMaps: { "kube-root-ca.crt": configMap({ "ca.crt": "CA" }) },
    secrets: { gone: { kind: "absent" } },
    tokens: { "3607/": found("TOKEN") },
  });
  const sources = [
    { serviceAccountToken: { expirationSeconds: 3607, path: "token" } },
    { configMap: { name: "kube-root-ca.crt", items: [{ key: "ca.crt", path: "ca.crt" }] } },
    { downwardAPI: { items: [{ path: "namespace", fieldRef: { fieldPath: "metadata.namespace" } }] } },
  ];

  test("hold the service account's token, CA and namespace", () => {
    expect(files({ projected: { sources } }, references)).toEqual([
      { path: "ca.crt", mode: "644", text: "CA" },
      { path: "namespace", mode: "644", text: "shop" },
      { path: "token", mode: "644", text: "TOKEN" },
    ]);
  });

  test("make the token private when the pod has an fsGroup", () => {
    const spec = { securityContext: { fsGroup: 100 } };
    expect(files({ projected: { sources } }, references, spec).find(({ path }) => path === "token")).toMatchObject({
      mode: "600",
    });
  });

  test("give the token to the user that all containers run as", () => {
    const spec = { securityContext: { runAsUser: 1000 } };
    expect(files({ projected: { sources } }, references, spec).find(({ path }) => path === "token")).toMatchObject({
      mode: "600",
      uid: 1000,
    });
  });

  test("report everything that is missing, each once", () => {
    const bad = [
      { secret: { name: "gone" } },
      { secret: { name: "gone" } },
      { serviceAccountToken: { path: "t", audience: "x" } },
    ];
    expect(render({ projected: { sources: bad } }, references)).toEqual({
      ok: false,
      message: '[secret "gone" not found, failed to fetch token: not read yet]',
    });
  });

  test("let the later source win, keep paths clean and inside", () => {
    const anySource = fc.dictionary(
      fc.constantFrom("a", "b", "c"),
      fc.constantFrom("x", "./y", "z//w", "..", "../e", "/abs", "d/..k"),
      { minKeys: 1 },
    );
    fc.assert(
      fc.property(fc.array(anySource, { minLength: 1, maxLength: 4 }), (maps) => {
        const configMaps = Object.fromEntries(
          maps.map((_, i) => [`c${i}`, configMap({ a: `a${i}`, b: `b${i}`, c: `c${i}` })]),
        );
        const projected = {
          sources: maps.map((map, i) => ({
            configMap: { name: `c${i}`, items: Object.entries(map).map(([key, path]) => ({ key, path })) },
          })),
        };
        const result = render({ projected }, referencesWith({ configMaps }));
        const all = maps.flatMap((map, i) => Object.entries(map).map(([key, path]) => ({ path, text: `${key}${i}` })));
        const isLegal = all.every(({ path }) => !path.startsWith("/") && !path.startsWith(".."));
        expect(result.ok).toBe(isLegal);
        if (!result.ok || result.volume.type !== "files") return;
        const expected = new Map(all.map(({ path, text }) => [posix.normalize(path), text]));
        const actual = new Map(
          result.volume.files.map((file) => [file.path, Buffer.from(file.content_b64, "base64").toString()]),
        );
        expect(Object.fromEntries(actual)).toEqual(Object.fromEntries(expected));
      }),
    );
  });
});

describe("trust anchors of a projected volume", () => {
  const trustBundle = (source: object, lookup?: Lookup<string>, spec?: Partial<PodSpec>) => {
    const clusterTrustBundle = { path: "ca.pem", ...source };
    const key = trustKey(trustWish(clusterTrustBundle) ?? { name: "" });
    const references = { ...referencesWith({}), ...(lookup && { trustBundles: new Map([[key, lookup]]) }) };
    return [{ projected: { sources: [{ clusterTrustBundle }] } }, references, spec] as const;
  };
  const bySigner = { signerName: "x.io/s", labelSelector: { matchLabels: { a: "b" } } };

  test.each([
    ["named one's", { name: "a" }],
    ["signer's", bySigner],
  ])("are the %s", (_, source) => {
    expect(files(...trustBundle(source, found("PEM")))).toEqual([{ path: "ca.pem", mode: "644", text: "PEM" }]);
  });

  test("belong to the pod's one user alone", () => {
    const spec = { securityContext: { runAsUser: 1000 } };
    expect(files(...trustBundle({ name: "a" }, found("PEM"), spec))).toMatchObject([{ mode: "600", uid: 1000 }]);
  });

  test("may be missing where they are optional: the file is empty", () => {
    expect(files(...trustBundle({ name: "a", optional: true }, { kind: "absent" }))).toMatchObject([{ text: "" }]);
  });

  test.each<[message: string, source: object, lookup: Lookup<string> | undefined]>([
    [
      'while getting ClusterTrustBundle: clustertrustbundle.certificates.k8s.io "a" not found',
      { name: "a" },
      { kind: "absent" },
    ],
    ["combination of signerName and labelSelector matched zero ClusterTrustBundles", bySigner, { kind: "absent" }],
    ["while getting ClusterTrustBundle: refused", { name: "a" }, { kind: "unknown", message: "refused" }],
    [
      "while getting ClusterTrustBundle: refused",
      { name: "a", optional: true },
      { kind: "unknown", message: "refused" },
    ],
    ["while getting ClusterTrustBundle: not read yet", { name: "a" }, undefined],
    ["ClusterTrustBundle projection requires either name or signerName to be set", {}, undefined],
  ])("hold the pod with %j", (message, source, lookup) => {
    expect(render(...trustBundle(source, lookup))).toEqual({ ok: false, message });
  });
});

describe("a certificate of a projected volume", () => {
  const bundle = found({ privateKey: "KEY\n", chain: "CERT\n" });
  const certificate = (paths: object, lookup?: Lookup<CertificateBundle>, spec?: Partial<PodSpec>) => {
    const podCertificate = { signerName: "s.io/s", keyType: "ED25519", ...paths };
    // It is the volume's second source.
    const sources = [{ downwardAPI: { items: [] } }, { podCertificate }];
    const references = { ...referencesWith({}), ...(lookup && { certificates: new Map([["v/1", lookup]]) }) };
    return [{ projected: { sources } }, references, spec] as const;
  };

  test("is one file with its key, or two", () => {
    const paths = { credentialBundlePath: "both.pem", keyPath: "key.pem", certificateChainPath: "cert.pem" };
    expect(files(...certificate(paths, bundle))).toEqual([
      { path: "both.pem", mode: "644", text: "KEY\nCERT\n" },
      { path: "cert.pem", mode: "644", text: "CERT\n" },
      { path: "key.pem", mode: "644", text: "KEY\n" },
    ]);
  });

  test("belongs to the pod's one user alone", () => {
    const spec = { securityContext: { runAsUser: 1000 } };
    expect(files(...certificate({ keyPath: "k" }, bundle, spec))).toMatchObject([{ mode: "600", uid: 1000 }]);
  });

  test.each<[message: string, lookup: Lookup<CertificateBundle> | undefined]>([
    ["not asked for yet", undefined],
    ["credential bundle is not issued yet", { kind: "unknown", message: "credential bundle is not issued yet" }],
  ])("holds the pod with %j", (message, lookup) => {
    expect(render(...certificate({ keyPath: "k" }, lookup))).toEqual({ ok: false, message });
  });
});

describe("emptyDir volumes", () => {
  test("are on disk without a size by default", () => {
    expect(render({ emptyDir: {} })).toEqual({ ok: true, volume: { name: "v", type: "empty_dir", medium: "disk" } });
  });

  test("carry their size limit", () => {
    expect(render({ emptyDir: { sizeLimit: "1Gi" } })).toMatchObject({ volume: { size_bytes: 2 ** 30 } });
  });

  test.each([
    ["node's memory", {}, undefined, 16 * 2 ** 30],
    ["pod's limit", { resources: { limits: { memory: "1Gi" } } }, undefined, 2 ** 30],
    ["volume's limit", { resources: { limits: { memory: "1Gi" } } }, "64Mi", 64 * 2 ** 20],
    ["pod's limit, not the larger of the volume", { resources: { limits: { memory: "1Gi" } } }, "2Gi", 2 ** 30],
  ])("in memory are as large as the %s", (_name, spec, sizeLimit, bytes) => {
    expect(render({ emptyDir: { medium: "Memory", ...(sizeLimit && { sizeLimit }) } }, undefined, spec)).toMatchObject({
      volume: { medium: "memory", size_bytes: bytes },
    });
  });
});

describe("tokenWishes", () => {
  test("names each token of the mounted volumes once", () => {
    const token = { serviceAccountToken: { path: "t", audience: "vault", expirationSeconds: 600 } };
    const pod = podWithContainer(
      { volumeMounts: [{ name: "v", mountPath: "/v" }] },
      {
        volumes: [
          { name: "v", projected: { sources: [token, token] } },
          { name: "unused", projected: { sources: [{ serviceAccountToken: { path: "t" } }] } },
        ],
      },
    );
    expect(tokenWishes(pod)).toEqual([{ audience: "vault", expirationSeconds: 600 }]);
  });
});

describe("filesVersion", () => {
  const file = { path: "a", mode: 0o644, content_b64: "QQ==" };

  test("changes with the contents, the mode, the owner and the path", () => {
    const versions = [
      file,
      { ...file, content_b64: "Qg==" },
      { ...file, mode: 0o600 },
      { ...file, uid: 1 },
      { ...file, path: "b" },
    ].map((f) => filesVersion([f]));
    expect(new Set(versions).size).toBe(5);
  });

  test("stays the same for the same files", () => {
    expect(filesVersion([{ ...file }])).toBe(filesVersion([file]));
  });
});
