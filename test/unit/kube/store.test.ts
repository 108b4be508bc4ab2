import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { Store, type StoreChange } from "../../../src/kube/store.ts";
import type { KubeObject } from "../../../src/kube/wire.ts";
import { silentLogger, type Logger } from "../../../src/telemetry/logger.ts";

const obj = (name: string, uid: string, resourceVersion = "1", labels: Record<string, string> = {}): KubeObject => ({
  metadata: { namespace: "ns", name, uid, resourceVersion, labels },
});

function create() {
  const store = new Store<KubeObject>({
    logger: silentLogger,
    indexers: { color: (o) => (o.metadata?.labels?.["color"] ? [o.metadata.labels["color"]] : []) },
  });
  const heard: string[] = [];
  store.onChange((c) => heard.push(`${c.type} ${c.object.metadata?.name} ${c.object.metadata?.uid}`));
  return { store, heard };
}

const uids = (objects: readonly KubeObject[]) =>
  objects.map((o) => o.metadata?.uid ?? "").toSorted((a, b) => a.localeCompare(b));

describe("Store", () => {
  test("finds objects by UID and by name", () => {
    const { store } = create();
    store.upsert(obj("a", "1"));
    expect(store.get("1")).toBe(store.getByName("ns", "a"));
    expect(store.getByName("other", "a")).toBeUndefined();
  });

  test("tells what an update replaced", () => {
    const { store } = create();
    const changes: StoreChange<KubeObject>[] = [];
    const [before, after] = [obj("a", "1", "1"), obj("a", "1", "2")];
    store.upsert(before);
    store.onChange((c) => changes.push(c));
    store.upsert(after);
    expect(changes).toEqual([{ type: "upsert", object: after, previous: before }]);
  });

  test("deletes what a full list lacks, before it takes in what is new", () => {
    const { store, heard } = create();
    store.replace([obj("a", "1"), obj("b", "2")]);
    heard.length = 0;
    store.replace([obj("b", "2"), obj("c", "3")]);
    expect(heard).toEqual(["delete a 1", "upsert b 2", "upsert c 3"]);
  });

  test("shows listeners the whole new state from the first notification on", () => {
    const { store } = create();
    const sizes: number[] = [];
    store.onChange(() => sizes.push(store.size));
    store.replace([obj("a", "1"), obj("b", "2")]);
    expect(sizes).toEqual([2, 2]);
  });

  test("deletes the old object first when its name comes back with a new UID", () => {
    const { store, heard } = create();
    store.upsert(obj("a", "1"));
    store.upsert(obj("a", "2"));
    expect(heard).toEqual(["upsert a 1", "delete a 1", "upsert a 2"]);
    expect(store.getByName("ns", "a")?.metadata?.uid).toBe("2");
    expect(store.size).toBe(1);
  });

  test("keeps the new object when the deletion of its predecessor comes late", () => {
    const { store } = create();
    store.upsert(obj("a", "1"));
    store.upsert(obj("a", "2"));
    expect(store.remove(obj("a", "1"))).toBe(false);
    expect(store.getByName("ns", "a")?.metadata?.uid).toBe("2");
  });

  test("hands listeners the final state of a deleted object", () => {
    const { store } = create();
    store.upsert(obj("a", "1", "1"));
    const changes: StoreChange<KubeObject>[] = [];
    store.onChange((c) => changes.push(c));
    store.remove(obj("a", "1", "9"));
    expect(changes[0]).toMatchObject({ type: "delete", object: { metadata: { resourceVersion: "9" } } });
  });

  test("follows an index value that changes", () => {
    const { store } = create();
    store.upsert(obj("a", "1", "1", { color: "red" }));
    store.upsert(obj("a", "1", "2", { color: "blue" }));
    expect(store.byIndex("color", "red")).toEqual([]);
    expect(uids(store.byIndex("color", "blue"))).toEqual(["1"]);
  });

  test("refuses an index that it does not have", () => {
    expect(() => create().store.byIndex("size", "x")).toThrow('no index "size"');
  });

  test("refuses an object without UID and names it", () => {
    expect(() => create().store.upsert({ kind: "Pod", metadata: { namespace: "ns", name: "a" } })).toThrow(
      "Pod ns/a has no metadata.uid",
    );
  });

  test("logs a listener that throws and tells the others", () => {
    const errors: object[] = [];
    const logger: Logger = { ...silentLogger, error: (fields) => void errors.push(fields) };
    const store = new Store<KubeObject>({ logger });
    let heard = 0;
    store.onChange(() => {
      throw new Error("boom");
    });
    store.onChange(() => heard++);
    store.upsert(obj("a", "1"));
    expect(heard).toBe(1);
    expect(errors).toMatchObject([{ err: { message: "boom" }, name: "a" }]);
  });

  test("wakes those who wait for the first full list", async () => {
    const { store } = create();
    const waiting = store.hasSynced(new AbortController().signal);
    expect(store.synced).toBe(false);
    store.replace([]);
    await waiting;
    expect(store.synced).toBe(true);
  });

  test("lets go of a waiter whose signal aborts", async () => {
    const abort = new AbortController();
    const waiting = create().store.hasSynced(abort.signal);
    abort.abort(new Error("stop"));
    await expect(waiting).rejects.toThrow("stop");
  });

  test("agrees with a plain model of the collection after any history, and its notifications replay to the same state", () => {
    const object = fc
      .record({
        n: fc.integer({ min: 0, max: 3 }),
        g: fc.integer({ min: 0, max: 2 }),
        color: fc.constantFrom("red", "blue"),
      })
      .map(({ n, g, color }) => obj(`n${n}`, `${n}-${g}`, "1", { color }));
    const step = fc.oneof(
      fc.record({ op: fc.constant("upsert" as const), object }),
      fc.record({ op: fc.constant("remove" as const), object }),
      fc.record({
        op: fc.constant("replace" as const),
        objects: fc.uniqueArray(object, { selector: (o) => o.metadata?.name, maxLength: 4 }),
      }),
    );
    fc.assert(
      fc.property(fc.array(step, { maxLength: 40 }), (steps) => {
        const { store } = create();
        const replayed = new Map<string, KubeObject>();
        store.onChange((c) => {
          if (c.type === "upsert") replayed.set(c.object.metadata!.uid!, c.object);
          else expect(replayed.delete(c.object.metadata!.uid!)).toBe(true);
        });
        let model = new Map<string, KubeObject>(); // by name
        for (const s of steps) {
          if (s.op === "upsert") {
            model.set(s.object.metadata!.name!, s.object);
            store.upsert(s.object);
          } else if (s.op === "remove") {
            if (model.get(s.object.metadata!.name!)?.metadata?.uid === s.object.metadata!.uid)
              model.delete(s.object.metadata!.name!);
            store.remove(s.object);
          } else {
            model = new Map(s.objects.map((o) => [o.metadata!.name!, o]));
            store.replace(s.objects);
          }
          expect(uids(store.list())).toEqual(uids([...model.values()]));
          expect(uids([...replayed.values()])).toEqual(uids([...model.values()]));
          for (const color of ["red", "blue"]) {
            const expected = [...model.values()].filter((o) => o.metadata?.labels?.["color"] === color);
            expect(uids(store.byIndex("color", color))).toEqual(uids(expected));
          }
        }
      }),
    );
  });
});
