import {
  statSync,
  chmodSync,
  closeSync,
  mkdirSync,
  mkdtempSync,
  readlinkSync,
  realpathSync,
  rmSync,
  symlinkSync,
  truncateSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { hostsFile, kernelHostname, resolvConf } from "../../../providers/local/bundle/host-files.ts";
import { openInRoot, readTextInRoot } from "../../../providers/local/bundle/root-path.ts";
import { seccompProfile, type SeccompSource } from "../../../providers/local/bundle/seccomp.ts";

describe("paths inside a folder that somebody else writes", () => {
  let root: string;
  const opened = (path: string, options = {}) => {
    const fd = openInRoot(root, path, options);
    try {
      return readlinkSync(`/proc/self/fd/${fd}`);
    } finally {
      closeSync(fd);
    }
  };
  beforeEach(() => {
    root = realpathSync(mkdtempSync(join(tmpdir(), "vmlet-root-")));
    mkdirSync(join(root, "a/b"), { recursive: true });
    writeFileSync(join(root, "a/b/f"), "text");
  });
  afterEach(() => rmSync(root, { recursive: true, force: true }));

  test.each([
    ["a plain path", "a/b/f", "a/b/f"],
    ["the folder itself", "/", ""],
    ["a path that climbs stays at the top", "../../a/../a/b", "a/b"],
  ])("%s", (_title, path, expected) => expect(opened(path)).toBe(join(root, expected).replace(/\/$/, "")));

  test.each([
    ["relative", "b/f", "a/l"],
    ["climbing", "../../../../a/b/f", "a/l"],
    ["absolute: from the folder's own top", "/a/b/f", "a/l"],
  ])("a link is followed inside: %s", (_title, target, path) => {
    symlinkSync(target, join(root, path));
    expect(opened(path)).toBe(join(root, "a/b/f"));
  });
  test("a link to outside leads nowhere", () => {
    symlinkSync("/etc/passwd", join(root, "l"));
    expect(() => opened("l")).toThrow(expect.objectContaining({ code: "ENOENT" }));
  });
  test.each(["/", "/a/b", "../a/b", "../../etc", "/etc/passwd"])("a link that would leave is refused: %s", (target) => {
    symlinkSync(target, join(root, "l"));
    expect(() => opened("l", { refuseEscapes: true, create: true })).toThrow(
      expect.objectContaining({ code: "EXDEV" }),
    );
  });
  test.each(["a/b", "a/../a/b", "./a/b/"])("a link that stays is none of them: %s", (target) => {
    symlinkSync(target, join(root, "l"));
    expect(opened("l", { refuseEscapes: true })).toBe(join(root, "a/b"));
  });
  test("nor is one that names the folder itself by its path on the host", () => {
    symlinkSync(join(root, "a/b"), join(root, "l"));
    expect(opened("l", { refuseEscapes: true })).toBe(join(root, "a/b"));
  });
  test.each([
    ["with a slash at its end", () => `${root}/`],
    [
      "by a link to it",
      () => {
        symlinkSync(root, join(root, "self"));
        return join(root, "self");
      },
    ],
  ])("nor is one in a folder that is given %s", (_title, given) => {
    symlinkSync(join(root, "a/b"), join(root, "l"));
    const fd = openInRoot(given(), "l", { refuseEscapes: true });
    const found = readlinkSync(`/proc/self/fd/${fd}`);
    closeSync(fd);
    expect(found).toBe(join(root, "a/b"));
  });
  test.each([() => join(root, "a/b"), () => "../../../../../../../.."])(
    "nothing leaves the host's own root",
    (target) => {
      symlinkSync(target(), join(root, "l"));
      const fd = openInRoot("/", join(root, "l"), { refuseEscapes: true });
      closeSync(fd);
      expect(fd).toBeGreaterThan(0);
    },
  );
  test("links in a circle end", () => {
    symlinkSync("l2", join(root, "l1"));
    symlinkSync("l1", join(root, "l2"));
    expect(() => opened("l1")).toThrow(expect.objectContaining({ code: "ELOOP" }));
  });
  test("missing folders are made when asked for", () =>
    expect(opened("n/e/w", { create: true })).toBe(join(root, "n/e/w")));
  test("missing folders are made with the mode of the folder that the path is in", () => {
    chmodSync(root, 0o2777);
    opened("m/n", { create: true });
    expect(["m", "m/n"].map((path) => statSync(join(root, path)).mode & 0o7777)).toEqual([0o2777, 0o2777]);
  });
  test("text of a missing file, of a folder and of a circle is empty", () => {
    symlinkSync("l", join(root, "l"));
    expect([readTextInRoot(root, "no/such"), readTextInRoot(root, "a"), readTextInRoot(root, "l")]).toEqual([
      "",
      "",
      "",
    ]);
  });
  test("text is cut at its limit, from either end", () =>
    expect([
      readTextInRoot(root, "a/b/f", { maxBytes: 2 }),
      readTextInRoot(root, "a/b/f", { maxBytes: 2, part: "last" }),
    ]).toEqual(["te", "xt"]));
  test("of a file that somebody has made huge, no more is read than is wanted", () => {
    writeFileSync(join(root, "huge"), "text");
    truncateSync(join(root, "huge"), 3 * 2 ** 30);
    expect(readTextInRoot(root, "huge", { maxBytes: 4 })).toBe("text");
  });
});

describe("seccomp", () => {
  const rule = (name: string, more: object) => ({
    names: [name],
    action: "SCMP_ACT_ALLOW",
    args: [],
    includes: {},
    excludes: {},
    ...more,
  });
  const source: SeccompSource = {
    defaultAction: "SCMP_ACT_ERRNO",
    defaultErrnoRet: 38,
    archMap: [{ architecture: "SCMP_ARCH_X86_64", subArchitectures: ["SCMP_ARCH_X86"] }],
    syscalls: [
      rule("always", {}),
      rule("with-admin", { includes: { caps: ["CAP_SYS_ADMIN"] } }),
      rule("without-admin", { excludes: { caps: ["CAP_SYS_ADMIN"] }, errnoRet: 1 }),
      rule("arm", { includes: { arches: ["arm64"] } }),
    ],
  };
  const names = (capabilities: string[], arch = "x64") =>
    (seccompProfile(source, capabilities, arch) as SeccompSource).syscalls.map((syscall) => syscall.names[0]);
  test("rules for capabilities that the container lacks are left out", () =>
    expect(names([])).toEqual(["always", "without-admin"]));
  test("and the other way round", () => expect(names(["CAP_SYS_ADMIN"])).toEqual(["always", "with-admin"]));
  test("rules of other processors are left out", () => expect(names([], "arm64")).toContain("arm"));
  test("the runtime gets plain rules", () =>
    expect(seccompProfile(source, [], "x64")).toEqual({
      defaultAction: "SCMP_ACT_ERRNO",
      defaultErrnoRet: 38,
      architectures: ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86"],
      syscalls: [
        { names: ["always"], action: "SCMP_ACT_ALLOW" },
        { names: ["without-admin"], action: "SCMP_ACT_ALLOW", errnoRet: 1 },
      ],
    }));
});

describe("a machine's own files", () => {
  test("/etc/hosts is kubelet's, with the fully qualified name first", () =>
    expect(hostsFile({ hostname: "a", domain: "b.c" }, ["10.0.0.1"])).toContain("\n10.0.0.1\ta.b.c\ta\n"));
  test("aliases come last, one line each", () =>
    expect(hostsFile({ hostname: "a", hosts: [{ ip: "1.2.3.4", names: ["x", "y"] }] }, ["10.0.0.1"])).toMatch(
      /\n\n# Entries added by HostAliases\.\n1\.2\.3\.4\tx\ty\n$/,
    ));
  test("resolv.conf leaves out what is empty", () =>
    expect(resolvConf({ nameservers: ["1.1.1.1"], searches: [], options: ["ndots:5"] })).toBe(
      "nameserver 1.1.1.1\noptions ndots:5\n",
    ));
  test("no settings: the host's file is for use", () => expect(resolvConf(undefined)).toBeUndefined());
  test("the kernel's hostname is qualified only when asked for", () => {
    expect(kernelHostname({ hostname: "a", domain: "b" }, "m")).toBe("a");
    expect(kernelHostname({ hostname: "a", domain: "b", hostname_is_fqdn: true }, "m")).toBe("a.b");
    expect(kernelHostname({}, "m".repeat(80))).toHaveLength(63);
  });
});
