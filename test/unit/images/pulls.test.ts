import { chmodSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { HostImages } from "../../../providers/http-vm/backend/images/store.ts";
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
