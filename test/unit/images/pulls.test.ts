import { createHash } from "node:crypto";
import { chmodSync, existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { HostImages } from "../../../providers/local/images/store.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { systemClock } from "../../../src/util/clock.ts";
import { VirtualClock } from "../../support/virtual-clock.ts";

let dir: string;

beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), "vmlet-images-"));
  mkdirSync(join(dir, "tools"));
  writeFileSync(
    join(dir, "tools/skopeo"),
    `#!/bin/sh\nprintf + >>${dir}/journal\nwhile [ -d ${dir} -a ! -e ${dir}/go ]; do sleep 0.01; done\nprintf - >>${dir}/journal\n`,
  );
  chmodSync(join(dir, "tools/skopeo"), 0o755);
  vi.stubEnv("PATH", `${dir}/tools:${process.env["PATH"]}`);
});

afterEach(() => {
  vi.unstubAllEnvs();
  rmSync(dir, { recursive: true, force: true });
});

test("a burst of pulls does not start a process for each at once", async () => {
  const images = new HostImages({ dir: join(dir, "images"), clock: systemClock, logger: silentLogger });
  const { signal } = new AbortController();
  const pulls = Array.from({ length: 30 }, (_, index) => images.pull(`r.test/i:${index}`, { auth: [], signal }));
  const settled = Promise.allSettled(pulls);
  await vi.waitFor(() => expect(readFileSync(join(dir, "journal"), "utf8")).toHaveLength(8));
  writeFileSync(join(dir, "go"), "");
  await settled;
  let running = 0;
  let most = 0;
  for (const step of readFileSync(join(dir, "journal"), "utf8")) {
    running += step === "+" ? 1 : -1;
    most = Math.max(most, running);
  }
  expect(most).toBe(8);
});

test("a pull that is called off while it waits for its turn ends at once", async () => {
  const images = new HostImages({ dir: join(dir, "images"), clock: systemClock, logger: silentLogger });
  const stop = new AbortController();
  const pulls = Array.from({ length: 30 }, (_, index) =>
    images.pull(`r.test/i:${index}`, { auth: [], signal: stop.signal }),
  );
  const settled = Promise.allSettled(pulls);
  stop.abort(new Error("called off"));
  expect(await settled).toMatchObject(pulls.map(() => ({ reason: { message: "called off" } })));
});

test("a registry that does not answer is given up, and others are asked", async () => {
  const clock = new VirtualClock();
  const images = new HostImages({ dir: join(dir, "images"), clock, logger: silentLogger });
  const { signal } = new AbortController();
  const pulls = Array.from({ length: 9 }, (_, index) => images.pull(`r.test/i:${index}`, { auth: [], signal }));
  const settled = Promise.allSettled(pulls);
  await vi.waitFor(() => expect(readFileSync(join(dir, "journal"), "utf8")).toHaveLength(8));
  await clock.advance(60_000);
  await vi.waitFor(() => expect(readFileSync(join(dir, "journal"), "utf8")).toHaveLength(9));
  await clock.advance(60_000);
  const reason = { reason: "RegistryUnavailable", message: expect.stringContaining("no answer within 60 s") };
  expect(await settled).toMatchObject(pulls.map(() => ({ reason })));
});

test("an image that cannot be unpacked leaves other pulls the layers that they share with it", async () => {
  const [base, config] = ["b", "c"].map((digit) => digit.repeat(64)) as [string, string];
  mkdirSync(join(dir, "registry"));
  writeFileSync(join(dir, "registry", base), "");
  writeFileSync(join(dir, "registry", config), "{}");
  const publish = (name: string) => {
    const blob = (hex: string) => ({ digest: `sha256:${hex}`, size: 1 });
    const manifest = JSON.stringify({ schemaVersion: 2, config: blob(config), layers: [blob(base)], name });
    const hex = createHash("sha256").update(manifest).digest("hex");
    for (const file of [name, hex]) writeFileSync(join(dir, "registry", file), manifest);
    return hex;
  };
  publish("good");
  const bad = publish("bad");
  writeFileSync(
    join(dir, "tools/skopeo"),
    `#!/bin/sh
for last; do before=$source; source=$last; done
case "$*" in
*inspect*) cat "${dir}/registry/\${last##*:}" ;;
*) layout=\${last#oci:} && layout=\${layout%:image} && cp ${dir}/registry/* "$layout/blobs/sha256/" &&
   printf '{"manifests": [{"digest": "%s"}]}' "\${before#*@}" >"$layout/index.json" ;;
esac
`,
  );
  writeFileSync(
    join(dir, "tools/umoci"),
    `#!/bin/sh
layout=\${4%:image}
if grep -q ${bad} "$layout/index.json"; then exit 1; fi
: >${dir}/unpacking
while [ -d ${dir} -a ! -e ${dir}/go ]; do sleep 0.01; done
mkdir "$5" && cat "$layout/blobs/sha256/${base}"
`,
  );
  chmodSync(join(dir, "tools/umoci"), 0o755);
  const images = new HostImages({ dir: join(dir, "images"), clock: systemClock, logger: silentLogger });
  const { signal } = new AbortController();
  const good = images.pull("r.test/i:good", { auth: [], signal });
  await vi.waitFor(() => expect(existsSync(join(dir, "unpacking"))).toBe(true));
  await expect(images.pull("r.test/i:bad", { auth: [], signal })).rejects.toThrow("failed to unpack");
  writeFileSync(join(dir, "go"), "");
  expect(await good).toMatchObject({ image: "r.test/i:good" });
  await expect(images.pull("r.test/i:bad", { auth: [], signal })).rejects.toThrow("failed to unpack");
  expect(existsSync(join(dir, "images/blobs/sha256", base))).toBe(false);
});
