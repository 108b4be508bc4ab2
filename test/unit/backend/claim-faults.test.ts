/**
 * What machines have of their host alone, addresses and users, written down as a file for each: taken, given back and
 * found again, once for each call of the file interfaces in it, which fails. The backend asks again.
 *
 * Expected of every one of them: no two have the same, each has the same one until it is given back, also in the eyes
 * of the next backend, and in the end none is taken.
 */
import { mkdtempSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, onTestFinished, test } from "vitest";
import { NumberClaims } from "../../../providers/local/host/number-claims.ts";
import { Ipam, parseSubnet } from "../../../providers/local/network/ipam.ts";
import { type CallKind, type Errno, Faults } from "../../support/faults.ts";

/** As many as there are: one that is leaked is missed. */
const OWNERS = ["a", "b", "c", "d", "e"];
const TRIES = 20;

interface Claims {
  take(owner: string): Promise<unknown>;
  release(owner: string): Promise<void>;
}

const kinds: Record<string, (dir: string) => Claims> = {
  addresses(dir) {
    const ipam = new Ipam(dir, parseSubnet("10.5.0.0/29"));
    return { take: (owner) => ipam.acquire(owner), release: (owner) => ipam.release(owner) };
  },
  users: (dir) => new NumberClaims({ dir, first: 1000, count: OWNERS.length, exhausted: "all are taken" }),
};

async function untilDone<T>(act: () => Promise<T>): Promise<T> {
  for (let tries = 0; ; tries++) {
    try {
      return await act();
    } catch (thrown) {
      if (tries === TRIES) throw thrown;
    }
  }
}

async function live(open: () => Claims): Promise<void> {
  const taken = new Map<string, unknown>();
  const take = async (from: Claims, owner: string) => taken.set(owner, await untilDone(() => from.take(owner)));
  const holds = async (by: Claims) => {
    expect(new Set(taken.values()).size).toBe(taken.size);
    for (const [owner, own] of taken) expect(await untilDone(() => by.take(owner))).toBe(own);
  };
  const first = open();
  for (const owner of OWNERS.slice(0, 3)) await take(first, owner);
  await untilDone(() => first.release("b"));
  taken.delete("b");
  await take(first, "d");
  await holds(first);
  const second = open();
  await holds(second);
  for (const owner of ["b", "e"]) await take(second, owner);
  await holds(second);
  for (const owner of OWNERS) await untilDone(() => second.release(owner));
  taken.clear();
  const third = open();
  for (const owner of OWNERS) await take(third, owner);
  await holds(third);
  for (const owner of OWNERS) await untilDone(() => third.release(owner));
}

const failures: [CallKind, Errno, number][] = [
  ["write", "ENOSPC", 1],
  ["write", "EIO", 3],
  ["read", "EMFILE", 1],
  ["read", "EIO", 2],
  ["remove", "EIO", 1],
];
test.each(Object.keys(kinds).flatMap((kind) => failures.map((failure) => [kind, ...failure] as const)))(
  "%s outlive each %s that fails with %s, %d in a row",
  async (what, kind, errno, times) => {
    const faults = Faults.install();
    for (let from = 1; from < 200; from++) {
      const dir = mkdtempSync(join(tmpdir(), "vmlet-claims-"));
      onTestFinished(() => rmSync(dir, { recursive: true }));
      const before = faults.failed;
      const mend = faults.fail({ kind, errno, about: (path) => path.startsWith(dir), from, times });
      try {
        await live(() => kinds[what]!(join(dir, "taken")));
      } catch (thrown) {
        throw new Error(`call ${from} of kind ${kind}: ${String(thrown)}`, { cause: thrown });
      } finally {
        mend();
      }
      expect(readdirSync(join(dir, "taken")).filter((name) => name !== "last_reserved_ip")).toEqual([]);
      if (faults.failed === before) return expect(from).toBeGreaterThan(1);
    }
    expect.unreachable("there are more calls than that");
  },
);
