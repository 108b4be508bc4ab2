import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, expect, test, vi } from "vitest";
import { CriEngine } from "../../../providers/local/engines/cri/engine.ts";
import { OciEngine } from "../../../providers/local/engines/oci/engine.ts";
import * as command from "../../../providers/local/host/command.ts";
import { checkHost } from "../../../providers/local/check-host.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { systemClock } from "../../../src/util/clock.ts";

let dir: string | undefined;
afterEach(() => {
  vi.restoreAllMocks();
  if (dir !== undefined) rmSync(dir, { recursive: true });
  dir = undefined;
});

const stage = (name: string): string => {
  const text = readFileSync(join(import.meta.dirname, "../../../Dockerfile"), "utf8");
  return new RegExp(`^FROM \\S+ AS ${name}\\n([^]*?)^FROM `, "m").exec(text)![1]!;
};

const surroundings = (stateDir: string) => ({ stateDir, clock: systemClock, logger: silentLogger });
const OF_BOTH = ["conntrack", "iproute2", "nftables", "runc", "util-linux"];
const engines = [
  {
    name: "oci",
    make: (stateDir: string) => new OciEngine({ ...surroundings(stateDir), seccompProfile: join(stateDir, "none") }),
    needs: [...OF_BOTH, "golang-github-containers-common", "umoci"],
  },
  {
    name: "cri",
    make: (stateDir: string) => new CriEngine({ ...surroundings(stateDir), logLimits: { maxBytes: 1, maxFiles: 2 } }),
    needs: [...OF_BOTH, "containerd", "containerd-shim-runc-v2"],
  },
];

test.each(engines)("the backend's image has all that engine $name would ask for", async ({ make, needs }) => {
  dir = mkdtempSync(join(tmpdir(), "vmlet-dockerfile-"));
  // A host without a single tool is asked for all of them.
  vi.spyOn(command, "findTool").mockReturnValue(undefined);
  const engine = make(dir);
  const problems = [...checkHost(), ...(await engine.check())];
  await engine.close();
  const wanted = problems.flatMap(({ problem, cure }) => {
    const inPackage = /apt-get install ([\w-]+)|Debian: ([\w-]+)\)|package (runc)/.exec(cure)?.slice(1);
    return inPackage ?? /^(containerd\S*) is not on the PATH/.exec(problem)?.slice(1) ?? [];
  });
  const inImage = new Set([...installed(), ...built()]);
  expect(inImage).toContain("containernetworking-plugins");
  const asked = new Set(wanted.filter(Boolean));
  // CNI's plugins are looked for by their path, and are there on some hosts of this test.
  asked.delete("containernetworking-plugins");
  expect([...asked].toSorted()).toEqual(needs.toSorted());
  for (const each of asked) expect(inImage).toContain(each);
});

test("the backend's image runs as root, which its engines need", () => {
  expect(/^USER (.*)$/m.exec(stage("backend"))![1]).toBe("0:0");
});

test("what is built for the backend's image is what the tests of engine cri run", () => {
  const build = readFileSync(join(import.meta.dirname, "../../e2e/harness/build.ts"), "utf8");
  const commands = [...stage("runtime").matchAll(/go build ([^]*?) -o \/runtime\/bin\//g)].map(([, flags]) => flags!);
  const tags = commands.map((flags) => /-tags (?:"([^"]+)"|(\S+))/.exec(flags)?.slice(1).find(Boolean));
  expect(tags).toEqual([...build.matchAll(/"-tags", "([^"]+)"/g)].map(([, each]) => each));
  const versions = [...build.matchAll(/[.\w]+ersion=v?\d+\.\d+\.\d+/g)].map(([version]) => version);
  expect(versions).toHaveLength(2);
  for (const version of versions) expect(commands.join("\n")).toContain(version);
});

function installed(): string[] {
  return /apt-get install ([^&]+)&&/.exec(stage("backend"))![1]!.split(/[\s\\]+/);
}

/** Names of programs that are built from Go modules. */
function built(): string[] {
  return [...stage("runtime").matchAll(/github\.com\/\S*?([\w-]+)(?=\s)/g)].map(([, name]) => name!);
}

test("the backend's image has an init that reaps, for node does not", () => {
  expect(/^ENTRYPOINT (.*)$/m.exec(stage("backend"))![1]).toMatch(/^\["\/usr\/bin\/tini", "--", /);
  expect(/apt-get install ([^&]+)&&/.exec(stage("backend"))![1]!.split(/[\s\\]+/)).toContain("tini");
});

test("a backend that is process 1 is told to have an init", () => {
  const problems = checkHost({ pid: 1 });
  expect(problems.map(({ fatal, cure }) => ({ fatal, cure }))).toContainEqual({
    fatal: false,
    cure: expect.stringContaining("--init"),
  });
  expect(checkHost({ pid: 2 })).toEqual([]);
});
