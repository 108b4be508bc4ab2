/** What a container of engine `process` sees of its volumes, and the host of them, by each kind of mount namespace. */
import { execFile } from "node:child_process";
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import {
  availableNamespaces,
  type BoundPath,
  inNamespace,
  linkBelow,
} from "../../../providers/local/engines/process/view.ts";

let dir: string;
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), "vmlet-view-"));
});
afterEach(() => rmSync(dir, { recursive: true, force: true }));

/** A volume with a file in it. */
function volume(name: string, content = `${name}\n`): string {
  const path = join(dir, name);
  mkdirSync(path);
  writeFileSync(join(path, "key"), content);
  return path;
}

const isRoot = process.getuid?.() === 0;
const available = await availableNamespaces();

describe.runIf(available !== undefined).each(isRoot ? (["root", "user"] as const) : (["user"] as const))(
  "a mount namespace of %s",
  (kind) => {
    /** Runs a script where it sees `paths`. */
    async function see(paths: readonly BoundPath[], script: string): Promise<string> {
      const argv = inNamespace(kind, {
        root: join(dir, "root"),
        cwd: dir,
        pidFile: join(dir, "pid"),
        paths,
        argv: ["sh", "-c", script],
      });
      const { stdout, stderr } = await promisify(execFile)(argv[0]!, argv.slice(1));
      return stdout + stderr;
    }

    test("has a volume at a path that the host has", async () => {
      const host = volume("host");
      const paths = [{ source: volume("v"), target: host, writable: false }];
      expect(await see(paths, `cat ${host}/key`)).toBe("v\n");
      expect(readFileSync(join(host, "key"), "utf8")).toBe("host\n");
    });

    test("has volumes at paths that the host lacks, beside all that the host has there, and none of them is made there", async () => {
      const before = readdirSync("/etc");
      const paths = ["/vmlet-test/a/b", "/etc/vmlet-test/c", "/vmlet-test/a", "/var/run/vmlet-test/d"].map(
        (target, index) => ({ source: volume(`v${index}`), target, writable: false }),
      );
      const script = `cat /vmlet-test/a/key /etc/vmlet-test/c/key /var/run/vmlet-test/d/key; cat /etc/passwd; pwd`;
      expect(await see(paths, script)).toBe(`v2\nv1\nv3\n${readFileSync("/etc/passwd", "utf8")}${dir}\n`);
      expect(readdirSync("/etc")).toEqual(before);
      expect(existsSync("/vmlet-test")).toBe(false);
    });

    test("has single files where the host has others, or none", async () => {
      const key = join(volume("v"), "key");
      const targets = ["/etc/hosts", "/etc/vmlet-test.conf", "/vmlet-test.conf"];
      const paths = targets.map((target) => ({ source: key, target, writable: false }));
      expect(await see(paths, `cat ${targets.join(" ")}`)).toBe("v\nv\nv\n");
    });

    test("lets write to what is writable, and to nothing else", async () => {
      const [writable, other] = [volume("w"), volume("o")];
      const paths = [
        { source: writable, target: "/vmlet-test/w", writable: true },
        { source: other, target: "/vmlet-test/o", writable: false },
      ];
      await see(paths, "echo new >/vmlet-test/w/key; echo new >/vmlet-test/o/key || true");
      expect(readFileSync(join(writable, "key"), "utf8")).toBe("new\n");
      expect(readFileSync(join(other, "key"), "utf8")).toBe("o\n");
    });

    test("leads to the very folders of the host otherwise", async () => {
      await see([{ source: volume("v"), target: "/vmlet-test", writable: false }], `echo seen >${dir}/left`);
      expect(readFileSync(join(dir, "left"), "utf8")).toBe("seen\n");
    });
  },
);

test("without a namespace, volumes are links below the home, each in the place of an earlier one", () => {
  const home = join(dir, "home");
  mkdirSync(join(home, "etc"), { recursive: true });
  symlinkSync("/nonexistent", join(home, "etc/config"));
  linkBelow(home, [{ source: volume("v"), target: "/etc/config", writable: false }]);
  expect(readFileSync(join(home, "etc/config/key"), "utf8")).toBe("v\n");
});
