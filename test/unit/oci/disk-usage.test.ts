import { chmodSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { OciSandbox } from "../../../providers/local/engines/oci/sandbox.ts";
import { SharedPlaces } from "../../../src/queue/shared-places.ts";
import { VirtualClock } from "../../support/virtual-clock.ts";

const VOLUMES = 12;

let dir: string;
let clock: VirtualClock;
let sandbox: OciSandbox;
/** Of a host that they all share. */
let open: (id: string, namespace: string) => OciSandbox;

beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), "vmlet-usage-"));
  writeFileSync(
    join(dir, "du"),
    `#!/bin/sh\nprintf + >>${dir}/journal\nwhile [ -d ${dir} -a ! -e ${dir}/go ]; do sleep 0.01; done\nprintf - >>${dir}/journal\nprintf '4096\\tx\\n'\n[ ! -e ${dir}/vanished ]\n`,
  );
  chmodSync(join(dir, "du"), 0o755);
  vi.stubEnv("PATH", `${dir}:${process.env["PATH"]}`);
  clock = new VirtualClock();
  const volumes = Array.from({ length: VOLUMES }, (_, index) => ({ name: `v${index}`, type: "empty_dir" }));
  const diskWalks = new SharedPlaces(3);
  open = (id, namespace) =>
    new OciSandbox(
      { clock, diskWalks, cgroupRoot: join(dir, "cgroup"), network: { counters: () => undefined } } as never,
      {
        id,
        dir: join(dir, id),
        spec: { labels: { "vmlet.dev/namespace": namespace }, volumes },
        socketPath: () => join(dir, "socket"),
      } as never,
      { attachment: { address: "10.0.0.2", netns: "/none" }, hostname: "h" } as never,
      ["10.0.0.2"],
    );
  sandbox = open("m", "a");
});

afterEach(() => {
  vi.unstubAllEnvs();
  rmSync(dir, { recursive: true, force: true });
});

const journal = () => readFileSync(join(dir, "journal"), "utf8");

test("of what is asked about at once, little is measured at a time, and nothing twice", async () => {
  const samples = [sandbox.stats([]), sandbox.stats([])];
  await vi.waitFor(() => expect(journal()).toHaveLength(3));
  writeFileSync(join(dir, "go"), "");
  for (const { volumes } of await Promise.all(samples))
    expect(volumes!.map(({ used_bytes }) => used_bytes)).toEqual(Array.from({ length: VOLUMES }, () => 4096));
  expect(journal().replaceAll("-", "")).toHaveLength(VOLUMES);
});

test("what one tenant has measured for long does not keep another's from being measured", async () => {
  writeFileSync(
    join(dir, "du"),
    `#!/bin/sh\nfor path; do :; done\ncase "$path" in */other/*) ;; *) while [ -d ${dir} -a ! -e ${dir}/go ]; do sleep 0.01; done ;; esac\nprintf '4096\\tx\\n'\n`,
  );
  const slow = [open("m1", "a").stats([]), open("m2", "a").stats([])];
  const { volumes } = await open("other", "b").stats([]);
  expect(volumes!.map(({ used_bytes }) => used_bytes)).toEqual(Array.from({ length: VOLUMES }, () => 4096));
  writeFileSync(join(dir, "go"), "");
  await Promise.all(slow);
});

test("a figure serves for a while", async () => {
  writeFileSync(join(dir, "go"), "");
  await sandbox.stats([]);
  await clock.advance(29_999);
  await sandbox.stats([]);
  expect(journal()).toHaveLength(2 * VOLUMES);
  await clock.advance(1);
  await sandbox.stats([]);
  expect(journal()).toHaveLength(4 * VOLUMES);
});

test("the figure counts although files vanished while it was taken", async () => {
  writeFileSync(join(dir, "go"), "");
  writeFileSync(join(dir, "vanished"), "");
  const { volumes } = await sandbox.stats([]);
  expect(volumes!.map(({ used_bytes }) => used_bytes)).toEqual(Array.from({ length: VOLUMES }, () => 4096));
});
