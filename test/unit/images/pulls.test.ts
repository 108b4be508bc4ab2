import { createHash } from "node:crypto";
import { chmodSync, existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
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
  const pulls = Array.from({ length: 30 }, (_, index) =>
    images.pull(`r.test/i:${index}`, { auth: [], tenant: "a", signal }),
  );
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
    images.pull(`r.test/i:${index}`, { auth: [], tenant: "a", signal: stop.signal }),
  );
  const settled = Promise.allSettled(pulls);
  stop.abort(new Error("called off"));
  expect(await settled).toMatchObject(pulls.map(() => ({ reason: { message: "called off" } })));
});

test("a registry that does not answer is given up, and others are asked", async () => {
  const clock = new VirtualClock();
  const images = new HostImages({ dir: join(dir, "images"), clock, logger: silentLogger });
  const { signal } = new AbortController();
  const pulls = Array.from({ length: 9 }, (_, index) =>
    images.pull(`r.test/i:${index}`, { auth: [], tenant: "a", signal }),
  );
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
  const good = images.pull("r.test/i:good", { auth: [], tenant: "a", signal });
  await vi.waitFor(() => expect(existsSync(join(dir, "unpacking"))).toBe(true));
  await expect(images.pull("r.test/i:bad", { auth: [], tenant: "a", signal })).rejects.toThrow("failed to unpack");
  writeFileSync(join(dir, "go"), "");
  expect(await good).toMatchObject({ image: "r.test/i:good" });
  await expect(images.pull("r.test/i:bad", { auth: [], tenant: "a", signal })).rejects.toThrow("failed to unpack");
  expect(existsSync(join(dir, "images/blobs/sha256", base))).toBe(false);
});

test("one tenant's registries that do not answer leave another's to be asked", async () => {
  writeFileSync(
    join(dir, "tools/skopeo"),
    `#!/bin/sh\nprintf '%s\\n' "$*" >>${dir}/asked\nwhile [ -d ${dir} ]; do sleep 0.01; done\n`,
  );
  const images = new HostImages({ dir: join(dir, "images"), clock: new VirtualClock(), logger: silentLogger });
  const stop = new AbortController();
  const asked = (registry: string) =>
    readFileSync(join(dir, "asked"), "utf8")
      .split("\n")
      .filter((line) => line.includes(registry)).length;
  const pull = (image: string, tenant: string) => images.pull(image, { auth: [], tenant, signal: stop.signal });
  const slow = Array.from({ length: 30 }, (_, index) => pull(`slow.test/i:${index}`, "c/slow"));
  const settled = Promise.allSettled(slow);
  await vi.waitFor(() => expect(asked("slow.test")).toBe(8));
  const other = Promise.allSettled([pull("other.test/i:1", "c/other")]);
  await vi.waitFor(() => expect(asked("other.test")).toBe(1));
  stop.abort(new Error("enough"));
  await Promise.all([settled, other]);
});

describe("downloads that stand still", () => {
  /** Images of registry slow.test are never sent, others at once. `begun` tells whose copying has begun. */
  function registries(): { begun: () => string[]; images: HostImages } {
    const hex = (text: string) => createHash("sha256").update(text).digest("hex");
    mkdirSync(join(dir, "blobs"));
    const put = (text: string) => {
      writeFileSync(join(dir, "blobs", hex(text)), text);
      return { digest: `sha256:${hex(text)}`, size: text.length };
    };
    const [config, layer] = [put("{}"), put("layer")];
    for (let index = 0; index < 9; index++)
      writeFileSync(
        join(dir, "blobs", String(index)),
        JSON.stringify({ schemaVersion: 2, config, layers: [layer], index }),
      );
    writeFileSync(
      join(dir, "tools/skopeo"),
      `#!/bin/sh
for last; do before=$source; source=$last; done
case "$*" in
*inspect*) exec cat "${dir}/blobs/\${last##*:}" ;;
esac
printf '%s\\n' "$before" >>${dir}/begun
case "$before" in *slow.test*) while [ -d ${dir} ]; do sleep 0.01; done ;; esac
layout=\${last#oci:} && layout=\${layout%:image} && cp ${dir}/blobs/* "$layout/blobs/sha256/"
hex=\${before#*@sha256:}
for file in ${dir}/blobs/?; do
  [ "$(sha256sum <"$file" | cut -d' ' -f1)" = "$hex" ] && cp "$file" "$layout/blobs/sha256/$hex"
done
printf '{"manifests": [{"digest": "sha256:%s"}]}' "$hex" >"$layout/index.json"
`,
    );
    writeFileSync(join(dir, "tools/umoci"), `#!/bin/sh\nmkdir "$5"\n`);
    chmodSync(join(dir, "tools/umoci"), 0o755);
    const images = new HostImages({ dir: join(dir, "images"), clock: new VirtualClock(), logger: silentLogger });
    const begun = () => (existsSync(join(dir, "begun")) ? readFileSync(join(dir, "begun"), "utf8") : "").split("\n");
    return { images, begun: () => begun().filter(Boolean) };
  }

  test("leave another tenant's room", async () => {
    const { images, begun } = registries();
    const stop = new AbortController();
    const slow = [0, 1, 2, 3].map((index) =>
      images.pull(`slow.test/i:${index}`, { auth: [], tenant: "c/slow", signal: stop.signal }),
    );
    const settled = Promise.allSettled(slow);
    await vi.waitFor(() => expect(begun()).toHaveLength(2));
    const { signal } = stop;
    const other = await images.pull("other.test/i:4", { auth: [], tenant: "c/other", signal });
    expect(other).toMatchObject({ image: "other.test/i:4" });
    stop.abort(new Error("enough"));
    await settled;
  });

  test("do not make others wait for the image that their own tenant has asked for first", async () => {
    const { images, begun } = registries();
    const stop = new AbortController();
    const { signal } = stop;
    const slow = ["slow.test/i:0", "slow.test/i:1", "other.test/i:4"].map((image) =>
      images.pull(image, { auth: [], tenant: "c/slow", signal }),
    );
    const settled = Promise.allSettled(slow);
    await vi.waitFor(() => expect(begun()).toHaveLength(2));
    const wanted = await images.pull("other.test/i:4", { auth: [], tenant: "c/other", signal });
    expect(await slow[2]).toEqual(wanted);
    expect(begun().filter((source) => source.includes("other.test"))).toHaveLength(1);
    stop.abort(new Error("enough"));
    await settled;
  });
});
