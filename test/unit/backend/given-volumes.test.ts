/** Volumes that a VM was made with: none is given that is not mounted. */
import { mkdirSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, expect, test } from "vitest";
import { GivenVolumes } from "../../../providers/local/volumes/given.ts";
import { SharedPlaces, type VolumeRecord } from "../../../src/provider/kit/index.ts";
import { VirtualClock } from "../../support/virtual-clock.ts";

const folder = mkdtempSync(join(tmpdir(), "vmlet-given-"));
afterAll(() => rmSync(folder, { recursive: true, force: true }));

const record = (id: string): VolumeRecord => ({
  fingerprint: "",
  volume: {
    id,
    version: 1,
    labels: {},
    state: "available",
    size_bytes: 100,
    mode: "filesystem",
    class: "given",
    created_at: "2026-01-01T00:00:00.000Z",
    reservations: [],
  },
});

test("a folder that is no mount is not given: what is written there would go with this host", async () => {
  const volumes = new GivenVolumes(folder, { clock: new VirtualClock(), walks: new SharedPlaces(1) });
  mkdirSync(volumes.path("v"), { recursive: true });
  const refused = { code: "unavailable" };
  await expect(volumes.make(record("v"), undefined)).rejects.toMatchObject(refused);
  await expect(volumes.attach(record("v"), { readOnly: false, mountOptions: [] })).rejects.toMatchObject(refused);
  await expect(volumes.make(record("v"), record("w"))).rejects.toMatchObject({ code: "invalid" });
  await expect(volumes.device("v")).rejects.toThrow("no device");
  // Nothing of it is this host's to remove.
  await volumes.remove();
  await volumes.detach("v");
  expect(await volumes.grow(record("v"), 7)).toBe(7);
});
