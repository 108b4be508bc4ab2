import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, expect, test, vi } from "vitest";
import { OciEngine } from "../../../providers/local/engines/oci/engine.ts";
import * as command from "../../../providers/local/host/command.ts";
import { checkHost } from "../../../providers/local/provider.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { systemClock } from "../../../src/util/clock.ts";

let dir: string | undefined;
afterEach(() => {
  vi.restoreAllMocks();
  if (dir !== undefined) rmSync(dir, { recursive: true });
  dir = undefined;
});

const backendStage = (): string => {
  const text = readFileSync(join(import.meta.dirname, "../../../Dockerfile"), "utf8");
  return /^FROM \S+ AS backend\n([^]*?)^FROM /m.exec(text)![1]!;
};

test("the backend's image has every package that engine oci would ask for, and runs as root, which it needs", async () => {
  dir = mkdtempSync(join(tmpdir(), "vmlet-dockerfile-"));
  // A host without a single tool is asked for all of them.
  vi.spyOn(command, "findTool").mockReturnValue(undefined);
  const options = { stateDir: dir, clock: systemClock, logger: silentLogger, seccompProfile: join(dir, "none") };
  const engine = new OciEngine(options);
  const cures = [...checkHost(), ...(await engine.check())].map(({ cure }) => cure);
  await engine.close();
  const wanted = cures.flatMap(
    (cure) => /apt-get install ([\w-]+)|Debian: ([\w-]+)\)|package (runc)/.exec(cure)?.slice(1) ?? [],
  );
  const packages = new Set(wanted.filter(Boolean));
  expect([...packages].toSorted()).toEqual([
    "conntrack",
    "golang-github-containers-common",
    "iproute2",
    "nftables",
    "runc",
    "umoci",
    "util-linux",
  ]);
  const installed = /apt-get install ([^&]+)&&/.exec(backendStage())![1]!.split(/[\s\\]+/);
  expect(installed).toEqual(expect.arrayContaining([...packages]));
  expect(/^USER (.*)$/m.exec(backendStage())![1]).toBe("0:0");
});

test("the backend's image has an init that reaps, for node does not", () => {
  expect(/^ENTRYPOINT (.*)$/m.exec(backendStage())![1]).toMatch(/^\["\/usr\/bin\/tini", "--", /);
  expect(/apt-get install ([^&]+)&&/.exec(backendStage())![1]!.split(/[\s\\]+/)).toContain("tini");
});

test("a backend that is process 1 is told to have an init", () => {
  const problems = checkHost({ pid: 1 });
  expect(problems.map(({ fatal, cure }) => ({ fatal, cure }))).toContainEqual({
    fatal: false,
    cure: expect.stringContaining("--init"),
  });
  expect(checkHost({ pid: 2 })).toEqual([]);
});
