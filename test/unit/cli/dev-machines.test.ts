import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { PassThrough } from "node:stream";
import { describe, expect, onTestFinished, test } from "vitest";
import { clusterIdOf, machinesOf } from "../../../src/cli/dev-machines.ts";
import type { Machine } from "../../../src/provider/machine.ts";
import type { Provider } from "../../../src/provider/provider.ts";
import { collectingLogger } from "../../support/collecting-logger.ts";

const OWN = { "vmlet.dev/cluster": "dev-1", "vmlet.dev/node": "vmlet-dev" };
const OTHERS = { ...OWN, "vmlet.dev/cluster": "production" };
const { signal } = new AbortController();

/** A backend that answers every list with all that it has, whatever labels were asked for. */
function backend(machines: Record<string, Record<string, string>>, rest: Partial<Provider> = {}) {
  const left = new Map(Object.entries(machines));
  const deleted: string[] = [];
  const provider = {
    getPods: () => Promise.resolve({ items: [...left].map(([id, labels]) => ({ id, labels }) as unknown as Machine) }),
    deletePod(id: string) {
      deleted.push(id);
      left.delete(id);
      return Promise.resolve();
    },
    ...rest,
  } as unknown as Provider;
  return { provider, deleted, left };
}

describe("on a backend that does not look at labels", () => {
  test("others' machines are not removed", async () => {
    const { provider, deleted } = backend({ mine: OWN, theirs: OTHERS, nobodys: {} });
    await machinesOf(provider, OWN).remove();
    expect(deleted).toEqual(["mine"]);
  });

  test("others' machines are not listed", async () => {
    const { provider } = backend({ mine: OWN, theirs: OTHERS });
    expect((await machinesOf(provider, OWN).list(signal)).map(({ id }) => id)).toEqual(["mine"]);
  });

  test("a connection goes to the machine of the pod, not to the first", async () => {
    const dialled: string[] = [];
    const portForward = (id: string) => {
      dialled.push(id);
      return Promise.resolve(new PassThrough());
    };
    const of = (uid: string) => ({ ...OWN, "vmlet.dev/uid": uid });
    const { provider } = backend({ first: of("a"), second: of("b") }, { portForward });
    await machinesOf(provider, OWN).dial!("b", 80, signal);
    expect(dialled).toEqual(["second"]);
    await expect(machinesOf(provider, OWN).dial!("c", 80, signal)).rejects.toThrow("no machine of pod c");
  });
});

describe("removing", () => {
  test("does not wait for one machine before it begins with the next", async () => {
    const { promise, resolve } = Promise.withResolvers<void>();
    let begun = 0;
    const { provider, left } = backend({ a: OWN, b: OWN, c: OWN });
    Object.assign(provider, {
      async deletePod(id: string) {
        if (++begun === 3) resolve();
        await promise;
        left.delete(id);
      },
    });
    await machinesOf(provider, OWN).remove();
    expect(begun).toBe(3);
  });

  test("goes on with the others when one cannot be removed, and fails by what that failed with", async () => {
    const { provider, left } = backend({ a: OWN, b: OWN, c: OWN });
    Object.assign(provider, {
      deletePod(id: string) {
        if (id === "a") return Promise.reject(new Error("a is stuck"));
        left.delete(id);
        return Promise.resolve();
      },
    });
    await expect(machinesOf(provider, OWN).remove()).rejects.toThrow("a is stuck");
    expect([...left.keys()]).toEqual(["a"]);
  });
});

describe("a cluster's id", () => {
  function folder(content?: string) {
    const dir = mkdtempSync(join(tmpdir(), "vmlet-dev-"));
    onTestFinished(() => rmSync(dir, { recursive: true }));
    if (content !== undefined) writeFileSync(join(dir, "cluster-id"), content);
    return dir;
  }

  test("is made once", async () => {
    const dir = folder();
    const id = await clusterIdOf(dir, collectingLogger());
    expect(id).toMatch(/^dev-[0-9a-f]{16}$/);
    expect(await clusterIdOf(dir, collectingLogger())).toBe(id);
  });

  test.each(["", "dev-", "dev-0123", "dev-0123456789abcdef\0\0", "../../etc"])(
    "is made again, and that is told, where a loss of power has torn it: %j",
    async (content) => {
      const log = collectingLogger();
      const dir = folder(content);
      const id = await clusterIdOf(dir, log);
      expect(id).toMatch(/^dev-[0-9a-f]{16}$/);
      expect(readFileSync(join(dir, "cluster-id"), "utf8")).toBe(id);
      expect(log.lines.map(({ level }) => level)).toEqual(["warn"]);
    },
  );
});
