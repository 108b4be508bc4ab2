/** What `vmlet csi --backends` is told: Machine APIs, and clouds, which have none in front of them. */
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, expect, test } from "vitest";
import { openVolumeBackends } from "../../../src/cli/backend-client.ts";
import { Backends } from "../../../src/csi/backends.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";

const folder = mkdtempSync(join(tmpdir(), "vmlet-backends-"));
afterAll(() => rmSync(folder, { recursive: true, force: true }));

const incus = (more: object = {}) => ({
  type: "cloud",
  scope: "disks",
  cloud: {
    type: "incus",
    url: "unix:///run/incus.socket",
    network: "incusbr0",
    instanceType: "container",
    volumes: { pools: ["default", "fast"], member: "one" },
    ...more,
  },
});

const open = (backends: readonly object[]) => {
  const file = join(folder, "backends.yaml");
  writeFileSync(file, JSON.stringify({ apiVersion: "vmlet.dev/v1", kind: "VolumeBackends", backends }));
  return openVolumeBackends(file, silentLogger);
};

test("a cloud is a backend by itself, beside Machine APIs", async () => {
  const providers = await open([incus(), { url: "unix:///run/backend.sock" }]);
  const [cloud] = providers;
  expect(await cloud.getInfo({ signal: AbortSignal.timeout(1000) })).toMatchObject({
    zone: "one",
    volumeClasses: [{ name: "default" }, { name: "fast" }],
    capabilities: expect.arrayContaining(["volumes.persistent", "volumes.clone"]) as unknown,
  });
  expect(new Backends(providers).only).toBeUndefined();
  await Promise.all(providers.map((each) => each.close()));
});

test("the keys of a cloud's guests are those of its agents, from the same file", async () => {
  const guestKeysFile = join(folder, "guest-keys");
  await expect(open([{ ...incus(), guestKeysFile }])).rejects.toThrow(/guestKeysFile .*guest-keys.*ENOENT/);
  writeFileSync(guestKeysFile, "0123456789abcdef".repeat(4));
  const [cloud] = await open([{ ...incus(), guestKeysFile }]);
  await cloud.close();
});

test.each([
  ["without volumes", [incus({ volumes: undefined })], /volumes/],
  ["of virtual machines", [incus({ instanceType: "virtual-machine" })], /instanceType to container/],
  ["that is named twice", [incus(), incus()], /twice/],
])("a cloud %s is refused by its field", async (_name, backends, why) => {
  await expect(open(backends)).rejects.toThrow(why);
});
