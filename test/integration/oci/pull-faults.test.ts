/**
 * The life of images on a host (pulled, found, found by the next backend, sharing layers with another, removed), once for
 * each call of the file interfaces in it (with VMLET_EVERY_CALL=1; else for some): that call fails, alone or with those
 * after it. Who wants them asks again.
 *
 * Expected of every one of them: nobody is given an image that is not whole, one that is here is never told to be
 * missing, a pull that was told to have succeeded is known to the next backend, and in the end nothing is left of what
 * was removed: neither images, nor blobs, nor what pulls have unpacked.
 */
import { execFileSync } from "node:child_process";
import { existsSync, readdirSync } from "node:fs";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { HostImages } from "../../../providers/local/images/host-images.ts";
import type { PreparedImage } from "../../../providers/local/engine.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { type CallKind, type Errno, Faults } from "../../support/faults.ts";
import { leaveOut } from "../../support/left-out.ts";
import { missingForImages, startRegistry, type TestRegistry } from "../../support/registry.ts";
import { VirtualClock } from "../../support/virtual-clock.ts";

/** Each call takes a life of a second: all of them by hand, some where changes are tried. */
const STEP = process.env["VMLET_EVERY_CALL"] === "1" ? 1 : 6;
const TRIES = 12;
/** More than any of these lives has. */
const CALLS = 200;
const SHARED = { path: "shared", content: "of both" };

const missing = missingForImages();
if (missing !== undefined) leaveOut("faults of image pulls", [missing].flat());
else
  describe("images", () => {
    let registry: TestRegistry;
    let names: { one: string; two: string };

    beforeAll(async () => {
      registry = await startRegistry();
      await registry.push("t/one:1", { layers: [[SHARED], [{ path: "own", content: "one" }]] });
      await registry.push("t/two:1", { layers: [[SHARED], [{ path: "own", content: "two" }]] });
      names = { one: `${registry.host}/t/one:1`, two: `${registry.host}/t/two:1` };
    });
    afterAll(() => registry.stop());

    async function untilDone<T>(act: () => Promise<T>): Promise<T> {
      for (let tries = 0; ; tries++) {
        try {
          return await act();
        } catch (thrown) {
          if (tries === TRIES) throw thrown;
        }
      }
    }

    function expectWhole({ location }: PreparedImage, own: string): void {
      // By another program, for which nothing fails.
      const read = (name: string) => execFileSync("cat", [join(location, name)], { encoding: "utf8" });
      expect([read("shared"), read("own")]).toEqual(["of both", own]);
    }

    /** @param mend ends all faults, after which nothing may be left of them */
    async function live(dir: string, mend: () => void): Promise<void> {
      const clock = new VirtualClock();
      const open = () => new HostImages({ dir, clock, logger: silentLogger, insecureRegistries: [registry.host] });
      const pull = (from: HostImages, image: string) =>
        untilDone(() => from.pull(image, { auth: [], tenant: "a", signal: AbortSignal.timeout(60_000) }));
      const here = async (from: HostImages, own: keyof typeof names) => {
        const found = await untilDone(() => from.find(names[own]));
        expect(found, `${own} is here`).toBeDefined();
        expectWhole(found!, own);
      };
      const first = open();
      expect(await untilDone(() => first.find(names.one))).toBeUndefined();
      expectWhole(await pull(first, names.one), "one");
      await here(first, "one");
      const second = open();
      await here(second, "one");
      expectWhole(await pull(second, names.two), "two");
      await here(second, "two");
      second.retain(new Set());
      await clock.advance(300_000);
      await untilDone(() => second.removeUnused());
      mend();
      // Whatever failed is made up for by the next that is asked, without a restart.
      await second.removeUnused();
      expect(filesOf(dir)).toEqual([]);
      expect(await second.find(names.one)).toBeUndefined();
      expectWhole(await pull(second, names.one), "one");
      await here(open(), "one");
    }

    const filesOf = (dir: string) =>
      ["images", "tmp", "blobs/sha256"].flatMap((name) => {
        const folder = join(dir, name);
        return existsSync(folder) ? readdirSync(folder).map((each) => `${name}/${each}`) : [];
      });

    test.each<[CallKind, Errno, number]>([
      ["write", "ENOSPC", 1],
      ["write", "EDQUOT", 3],
      ["write", "EIO", 2],
      ["flush", "EIO", 1],
      ["open", "EMFILE", 1],
      ["open", "ENOSPC", 2],
      ["read", "EMFILE", 1],
      ["read", "ENOMEM", 2],
      ["look", "EIO", 1],
      ["look", "ENFILE", 3],
      ["remove", "EIO", 1],
      ["remove", "EMFILE", 2],
      ["spawn", "EMFILE", 1],
      ["spawn", "ENOMEM", 1],
    ])(
      "outlive each %s that fails with %s, %d in a row",
      async (kind, errno, times) => {
        const faults = Faults.install();
        for (let from = 1; from < CALLS; from += times * STEP) {
          const dir = await mkdtemp(join(tmpdir(), "vmlet-pull-faults-"));
          const before = faults.failed;
          const about = (path: string) => kind === "spawn" || kind === "flush" || path.startsWith(dir);
          const mend = faults.fail({ kind, errno, about, from, times });
          try {
            await live(dir, mend);
          } catch (thrown) {
            throw new Error(`call ${from} of kind ${kind}: ${String(thrown)}`, { cause: thrown });
          } finally {
            mend();
            await rm(dir, { recursive: true, force: true });
          }
          if (faults.failed === before) return expect(from).toBeGreaterThan(1);
        }
        expect.unreachable("the life has more calls than that");
      },
      300_000,
    );
  });
