/** What registries and images say, which anybody may have written: verified, bounded, and refused on the pod that it is for. */
import { createHash } from "node:crypto";
import { mkdtempSync, mkdirSync, rmSync, symlinkSync, truncateSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { openInRoot } from "../../../providers/local/bundle/root-path.ts";
import { accountFiles, resolveUser } from "../../../providers/local/bundle/users.ts";
import { imageConfig } from "../../../providers/local/images/image-config.ts";
import { choosePlatform, readDocument, readManifest } from "../../../providers/local/images/manifest.ts";
import { redact } from "../../../providers/local/images/redact.ts";

const digest = (letter: string) => `sha256:${letter.repeat(64)}`;
const layer = { digest: digest("a"), size: 1 };
const pullError = (text: string) =>
  expect.objectContaining({ reason: "ErrImagePull", message: expect.stringContaining(text) });
const thrown = (work: () => unknown): unknown => {
  try {
    return work();
  } catch (thrown) {
    return thrown;
  }
};

describe("a manifest", () => {
  const content = Buffer.from('{"schemaVersion":2}');
  const own = `sha256:${createHash("sha256").update(content).digest("hex")}`;

  test("is the one that was asked for", () => expect(readDocument("i", content, own)).toEqual({ schemaVersion: 2 }));
  test("is refused when it is another", () =>
    expect(thrown(() => readDocument("i", content, digest("b")))).toEqual(pullError("does not match its digest")));
  test.each(["[]", "1", "null", '"x"', "{", ""])("is refused when it is no object: %s", (text) =>
    expect(thrown(() => readDocument("i", Buffer.from(text)))).toEqual(pullError("JSON")),
  );
  test.each<[string, object, string]>([
    ["no layers", { schemaVersion: 2, config: layer }, "no list of layers"],
    ["another schema", { schemaVersion: 1, config: layer, layers: [] }, "manifest schema 1 is not supported"],
    [
      "a schema that is no number",
      { schemaVersion: { toString: 1, valueOf: "x".repeat(10_000) }, layers: [] },
      "is not supported",
    ],
    [
      "more layers than any tool makes",
      { schemaVersion: 2, config: layer, layers: Array.from({ length: 513 }, () => layer) },
      "it has 513 layers, more than the 512",
    ],
    [
      "a configuration of many megabytes",
      { schemaVersion: 2, config: { ...layer, size: 5e6 }, layers: [] },
      "its configuration has 5000000 bytes, more than the 4194304",
    ],
    [
      "a size that is none",
      { schemaVersion: 2, config: { ...layer, size: -1 }, layers: [] },
      "without a sha256 digest",
    ],
    [
      "a digest of another kind",
      { schemaVersion: 2, config: layer, layers: [{ size: 1, digest: "sha256:../../etc/passwd" }] },
      "without a sha256 digest",
    ],
    ["a layer that is null", { schemaVersion: 2, config: layer, layers: [null] }, "without a sha256 digest"],
  ])("is refused with %s", (_title, document, text) => {
    const error = thrown(() => readManifest("i", document as Record<string, unknown>)) as Error;
    expect(error).toEqual(pullError(text));
    expect(error.message.length).toBeLessThan(300);
  });
  test("is not taken from an index that names something else than a digest", () =>
    expect(
      thrown(() =>
        choosePlatform(
          "i",
          { manifests: [null, { digest: "../x", platform: { os: "linux", architecture: "amd64" } }] },
          { os: "linux", architecture: "amd64" },
        ),
      ),
    ).toEqual(pullError("no match for platform linux/amd64")));
});

describe("an image's configuration", () => {
  test("keeps what decides how its containers run", () =>
    expect(
      imageConfig("i", {
        config: { Entrypoint: ["/e"], Cmd: ["c"], Env: ["A=b"], User: "u", WorkingDir: "/w", StopSignal: "9" },
      }),
    ).toEqual({ entrypoint: ["/e"], cmd: ["c"], env: ["A=b"], user: "u", workingDir: "/w", stopSignal: "9" }));
  test.each([undefined, null, {}, { config: null }, { config: { Env: "A=b", Cmd: [1], User: {} } }])(
    "without a usable part is empty: %j",
    (document) => expect(imageConfig("i", document)).toEqual({}),
  );
  test.each<[string, object, string]>([
    [
      "an environment of megabytes",
      { Env: Array.from({ length: 40 }, () => `A=${"x".repeat(100_000)}`) },
      "bytes of Entrypoint, Cmd and Env",
    ],
    ["one huge variable", { Env: [`A=${"x".repeat(200_000)}`] }, "an entry of Env with 200002 bytes"],
    ["a huge command", { Cmd: ["x".repeat(200_000)] }, "an entry of Cmd with 200000 bytes"],
    [
      "a hundred thousand arguments",
      { Entrypoint: Array.from({ length: 100_000 }, () => "") },
      "100000 entries of Entrypoint",
    ],
    ["a huge user", { User: "u".repeat(5000) }, "a longer User"],
    ["a huge working folder", { WorkingDir: `/${"w/".repeat(5000)}` }, "a longer WorkingDir"],
  ])("is refused with %s", (_title, config, text) =>
    expect(thrown(() => imageConfig("i", { config }))).toEqual(pullError(text)),
  );
});

describe("what is in an image", () => {
  let root: string;
  beforeEach(() => {
    root = mkdtempSync(join(tmpdir(), "vmlet-root-"));
    mkdirSync(join(root, "etc"));
  });
  afterEach(() => rmSync(root, { recursive: true, force: true }));
  const createError = (text: string) =>
    expect.objectContaining({ reason: "CreateContainerError", message: expect.stringContaining(text) });

  test.each(["passwd", "group"])("a /etc/%s of a gigabyte is refused, unread", (name) => {
    writeFileSync(join(root, "etc", name), "root:x:0:0:root:/root:/bin/sh\n");
    truncateSync(join(root, "etc", name), 2 ** 30);
    expect(thrown(() => accountFiles(root, "a"))).toEqual(
      createError(`container a: the image's /etc/${name} has more than 1048576 bytes`),
    );
  });
  test("a group file that has a user in ten thousand groups is refused", () => {
    const groupFile = Array.from({ length: 10_001 }, (_, gid) => `g${gid}:x:${gid}:root`).join("\n");
    expect(
      thrown(() =>
        resolveUser({
          imageUser: undefined,
          user: undefined,
          group: undefined,
          runAsNonRoot: false,
          supplementalGroups: [],
          isStrict: false,
          passwdFile: "root:x:0:0:root:/root:/bin/sh",
          groupFile,
          container: "a",
          pod: "p",
        }),
      ),
    ).toEqual(createError("has its user in 10001 groups, more than the 1024"));
  });
  test("a path of a million steps is refused after a few, with no descriptor left", () => {
    mkdirSync(join(root, "d"));
    expect(() => openInRoot(root, "d/../".repeat(500_000))).toThrow(expect.objectContaining({ code: "ENAMETOOLONG" }));
  });
  test("links that lead to long paths do not add up", () => {
    mkdirSync(join(root, "d"));
    for (let link = 0; link < 39; link++) symlinkSync(`${"d/../".repeat(800)}l${link + 1}`, join(root, `l${link}`));
    expect(() => openInRoot(root, "l0")).toThrow(expect.objectContaining({ code: "ENAMETOOLONG" }));
  });
});

describe("what a registry says", () => {
  test.each([
    [
      'Get "https://blobs.example/a?sig=s3cret&se=2026": dial tcp: i/o timeout',
      'Get "https://blobs.example/a?REDACTED": dial tcp: i/o timeout',
    ],
    ["Put https://user:pass@host.example/v2/: EOF", "Put https://host.example/v2/: EOF"],
    ["https://a/?x=1 and <https://b/?y=2>, '/c?z=3'", "https://a/?REDACTED and <https://b/?REDACTED>, '/c?REDACTED'"],
    ["is it up? no", "is it up? no"],
  ])("is told without what signs for a blob: %s", (text, expected) => expect(redact(text)).toBe(expected));
});
