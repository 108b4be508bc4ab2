import { createHash } from "node:crypto";
import { chmodSync, existsSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import type { IncomingMessage, ServerResponse } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import { HostImages } from "../../../providers/local/images/host-images.ts";
import type { Clock } from "../../../src/util/clock.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { systemClock } from "../../../src/util/clock.ts";
import { type LyingRegistry, startLyingRegistry } from "../../support/lying-registry.ts";
import { VirtualClock } from "../../support/virtual-clock.ts";

/** Of a busy host. */
const PATIENCE = { timeout: 10_000 };

let dir: string;
let registry: LyingRegistry;
let other: LyingRegistry;

beforeEach(async () => {
  dir = mkdtempSync(join(tmpdir(), "vmlet-images-"));
  mkdirSync(join(dir, "tools"));
  vi.stubEnv("PATH", `${dir}/tools:${process.env["PATH"]}`);
  registry = await startLyingRegistry();
  other = await startLyingRegistry();
});

afterEach(async () => {
  await Promise.all([registry.stop(), other.stop()]);
  vi.unstubAllEnvs();
  rmSync(dir, { recursive: true, force: true });
});

const open = (clock: Clock = systemClock) =>
  new HostImages({
    dir: join(dir, "images"),
    clock,
    logger: silentLogger,
    insecureRegistries: [registry.host, other.host],
  });

/** Has the registry keep who asks for images 0 to 29 of repository `i` waiting. @returns those that wait */
function holdManifests(): ServerResponse[] {
  const held: ServerResponse[] = [];
  for (let index = 0; index < 30; index++)
    registry.answer(`/v2/i/manifests/${index}`, (_request: IncomingMessage, response) => held.push(response));
  return held;
}

test("a burst of pulls does not ask all at once", async () => {
  const held = holdManifests();
  const images = open();
  const { signal } = new AbortController();
  let asked = 0;
  const pulls = Array.from({ length: 30 }, (_, index) =>
    images.pull(`${registry.host}/i:${index}`, { auth: [], tenant: "a", signal }),
  );
  const settled = Promise.allSettled(pulls);
  let most = 0;
  while (asked < 30) {
    await vi.waitFor(() => expect(held).toHaveLength(Math.min(8, 30 - asked)), PATIENCE);
    most = Math.max(most, held.length);
    asked += held.length;
    for (const response of held.splice(0)) response.writeHead(404).end();
  }
  await settled;
  expect(most).toBe(8);
});

test("a pull that is called off while it waits for its turn ends at once", async () => {
  holdManifests();
  const images = open();
  const stop = new AbortController();
  const pulls = Array.from({ length: 30 }, (_, index) =>
    images.pull(`${registry.host}/i:${index}`, { auth: [], tenant: "a", signal: stop.signal }),
  );
  const settled = Promise.allSettled(pulls);
  stop.abort(new Error("called off"));
  expect(await settled).toMatchObject(pulls.map(() => ({ reason: { message: "called off" } })));
});

test("a registry that does not answer is given up, and others are asked", async () => {
  const held = holdManifests();
  const clock = new VirtualClock();
  const images = open(clock);
  const { signal } = new AbortController();
  const pulls = Array.from({ length: 9 }, (_, index) =>
    images.pull(`${registry.host}/i:${index}`, { auth: [], tenant: "a", signal }),
  );
  const settled = Promise.allSettled(pulls);
  await vi.waitFor(() => expect(held).toHaveLength(8), PATIENCE);
  await clock.advance(60_000);
  await vi.waitFor(() => expect(held).toHaveLength(9), PATIENCE);
  await clock.advance(60_000);
  const reason = { reason: "RegistryUnavailable", message: expect.stringContaining("no answer within 60 s") };
  expect(await settled).toMatchObject(pulls.map(() => ({ reason })));
});

test("an image that cannot be unpacked leaves other pulls the layers that they share with it", async () => {
  const layer = registry.blob("i", Buffer.from("base"));
  const config = registry.blob("i", Buffer.from("{}"));
  const bad = registry.blob("i", Buffer.from("bad"));
  registry.manifest("i", "good", { schemaVersion: 2, config, layers: [layer] });
  registry.manifest("i", "bad", { schemaVersion: 2, config, layers: [layer, bad] });
  const hexOf = ({ digest }: { digest: string }) => digest.slice("sha256:".length);
  writeFileSync(
    join(dir, "tools/umoci"),
    `#!/bin/sh
layout=\${4%:image}
if [ -e "$layout/blobs/sha256/${hexOf(bad)}" ]; then exit 1; fi
: >${dir}/unpacking
while [ -d ${dir} -a ! -e ${dir}/go ]; do sleep 0.01; done
mkdir "$5" && cat "$layout/blobs/sha256/${hexOf(layer)}"
`,
  );
  chmodSync(join(dir, "tools/umoci"), 0o755);
  const images = open();
  const { signal } = new AbortController();
  const pull = (tag: string) => images.pull(`${registry.host}/i:${tag}`, { auth: [], tenant: "a", signal });
  const good = pull("good");
  await vi.waitFor(() => expect(existsSync(join(dir, "unpacking"))).toBe(true), PATIENCE);
  await expect(pull("bad")).rejects.toThrow("failed to unpack");
  writeFileSync(join(dir, "go"), "");
  expect(await good).toMatchObject({ image: `${registry.host}/i:good` });
  await expect(pull("bad")).rejects.toThrow("failed to unpack");
  expect(existsSync(join(dir, "images/blobs/sha256", hexOf(layer)))).toBe(false);
});

test("one tenant's registries that do not answer leave another's to be asked", async () => {
  const held = holdManifests();
  const images = open(new VirtualClock());
  const stop = new AbortController();
  const pull = (image: string, tenant: string) => images.pull(image, { auth: [], tenant, signal: stop.signal });
  const slow = Array.from({ length: 30 }, (_, index) => pull(`${registry.host}/i:${index}`, "c/slow"));
  const settled = Promise.allSettled(slow);
  await vi.waitFor(() => expect(held).toHaveLength(8), PATIENCE);
  const others = Promise.allSettled([pull(`${other.host}/i:1`, "c/other")]);
  await vi.waitFor(() => expect(other.requests).toContain("GET /v2/i/manifests/1"), PATIENCE);
  stop.abort(new Error("enough"));
  await Promise.all([settled, others]);
});

describe("downloads that stand still", () => {
  /** The layers of registry `registry` are never sent, those of `other` at once. `begun` counts the former. */
  function registries(): { begun: () => number; images: HostImages } {
    for (const one of [registry, other]) {
      const config = one.blob("i", Buffer.from("{}"));
      for (let index = 0; index < 9; index++) {
        const layer = one.blob("i", Buffer.from(`layer ${index}`));
        one.manifest("i", String(index), { schemaVersion: 2, config, layers: [layer], index });
        if (one === registry) one.answer(`/v2/i/blobs/${layer.digest}`, () => undefined);
      }
    }
    writeFileSync(join(dir, "tools/umoci"), `#!/bin/sh\nmkdir "$5"\n`);
    chmodSync(join(dir, "tools/umoci"), 0o755);
    const hex = (text: string) => createHash("sha256").update(text).digest("hex");
    const layers = Array.from({ length: 9 }, (_, index) => `GET /v2/i/blobs/sha256:${hex(`layer ${index}`)}`);
    return {
      images: open(new VirtualClock()),
      begun: () => registry.requests.filter((one) => layers.includes(one)).length,
    };
  }

  test("leave another tenant's room", async () => {
    const { images, begun } = registries();
    const stop = new AbortController();
    const slow = [0, 1, 2, 3].map((index) =>
      images.pull(`${registry.host}/i:${index}`, { auth: [], tenant: "c/slow", signal: stop.signal }),
    );
    const settled = Promise.allSettled(slow);
    await vi.waitFor(() => expect(begun()).toBe(2), PATIENCE);
    const { signal } = stop;
    const image = `${other.host}/i:4`;
    expect(await images.pull(image, { auth: [], tenant: "c/other", signal })).toMatchObject({ image });
    stop.abort(new Error("enough"));
    await settled;
  });

  test("do not make others wait for the image that their own tenant has asked for first", async () => {
    const { images, begun } = registries();
    const stop = new AbortController();
    const { signal } = stop;
    const slow = [`${registry.host}/i:0`, `${registry.host}/i:1`, `${other.host}/i:4`].map((image) =>
      images.pull(image, { auth: [], tenant: "c/slow", signal }),
    );
    const settled = Promise.allSettled(slow);
    await vi.waitFor(() => expect(begun()).toBe(2), PATIENCE);
    const wanted = await images.pull(`${other.host}/i:4`, { auth: [], tenant: "c/other", signal });
    expect(await slow[2]).toEqual(wanted);
    expect(other.requests.filter((request) => request.includes("/blobs/"))).toHaveLength(2);
    stop.abort(new Error("enough"));
    await settled;
  });
});
