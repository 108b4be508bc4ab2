import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { podReferences, ReferenceCache } from "../../../src/podspec/references/references.ts";
import { ServiceCache } from "../../../src/podspec/references/services.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { settle, VirtualClock } from "../../support/virtual-clock.ts";
import { failure, FakeKube, isAbout } from "./fake-kube.ts";
import { podWith, podWithContainer } from "./fixtures.ts";

describe("podReferences", () => {
  test("finds what env, volumes and pull secrets refer to, each once", () => {
    const pod = podWith({
      initContainers: [
        { name: "i", envFrom: [{ secretRef: { name: "s1" } }, { configMapRef: { name: "c1", optional: true } }] },
      ],
      containers: [
        {
          name: "app",
          env: [
            { name: "A", valueFrom: { configMapKeyRef: { name: "c1", key: "k" } } },
            { name: "B", valueFrom: { secretKeyRef: { name: "s2", key: "k", optional: true } } },
          ],
          volumeMounts: [
            { name: "p", mountPath: "/p" },
            { name: "s", mountPath: "/s" },
          ],
        },
      ],
      volumes: [
        {
          name: "p",
          projected: { sources: [{ configMap: { name: "c2" } }, { secret: { name: "s3", optional: true } }] },
        },
        { name: "s", secret: { secretName: "s4" } },
        { name: "unused", configMap: { name: "never" } },
      ],
      imagePullSecrets: [{ name: "pull" }],
    });
    expect(podReferences(pod).map(({ kind, name, optional }) => `${kind} ${name}${optional ? "?" : ""}`)).toEqual([
      "secret s1",
      "configmap c1",
      "secret s2?",
      "configmap c2",
      "secret s3?",
      "secret s4",
      "secret pull?",
    ]);
  });

  test("leaves the service account's volume out where it is not mounted", () => {
    const pod = podWithContainer(
      { volumeMounts: [{ name: "kube-api-access-1", mountPath: "/s" }] },
      {
        volumes: [
          {
            name: "kube-api-access-1",
            projected: {
              sources: [{ serviceAccountToken: { path: "t" } }, { configMap: { name: "kube-root-ca.crt" } }],
            },
          },
        ],
      },
    );
    expect(podReferences(pod, { files: true })).toHaveLength(1);
    expect(podReferences(pod, { files: false })).toEqual([]);
  });
});

describe("ReferenceCache", () => {
  const SECRET = "/api/v1/namespaces/shop/secrets/s";
  const pod = podWith({}, { uid: "u1" });
  const other = podWith({}, { uid: "u2" });
  const refs = [{ kind: "secret" as const, name: "s", optional: false }];
  let kube: FakeKube;
  let clock: VirtualClock;
  let changed: string[];
  let cache: ReferenceCache;
  let services: ServiceCache;
  let done: AbortController;

  beforeEach(() => {
    kube = new FakeKube();
    clock = new VirtualClock();
    changed = [];
    done = new AbortController();
    const parts = { kube, clock, random: () => 0, logger: silentLogger };
    services = new ServiceCache(parts);
    cache = new ReferenceCache({ ...parts, services, onChange: (uid) => changed.push(uid) });
  });
  afterEach(() => {
    done.abort();
    cache.close();
  });

  async function read(which = pod) {
    cache.track(which, refs);
    await cache.read(which.metadata?.uid ?? "", done.signal);
    await settle();
    return cache.references(which).secrets.get("s");
  }

  test("lists an object by its name and then watches that name alone", async () => {
    kube.put(SECRET, { data: { k: "dg==" } });
    expect(await read()).toMatchObject({ kind: "found", object: { data: { k: "dg==" } } });
    expect(kube.requests.map(({ method, query }) => [method, query?.["fieldSelector"]])).toEqual([
      ["GET", "metadata.name=s"],
      ["WATCH", "metadata.name=s"],
    ]);
  });

  test("tells the pods that refer to an object when it changes", async () => {
    kube.put(SECRET);
    await read(pod);
    await read(other);
    const before = cache.version("u1");
    kube.put(SECRET, { data: { k: "bmV3" } });
    await settle();
    expect(changed).toEqual(["u1", "u2"]);
    expect(cache.version("u1")).not.toBe(before);
    expect(cache.references(pod).secrets.get("s")).toMatchObject({ object: { data: { k: "bmV3" } } });
  });

  test("shares one watch between pods and ends it with the last of them", async () => {
    kube.put(SECRET);
    await read(pod);
    await read(other);
    expect(kube.watches).toBe(1);
    cache.release("u1");
    await settle();
    expect(kube.watches).toBe(1);
    cache.release("u2");
    await settle();
    expect(kube.watches).toBe(0);
  });

  test("lets go of what a pod no longer refers to", async () => {
    kube.put(SECRET);
    await read();
    cache.track(pod, []);
    await settle();
    expect(kube.watches).toBe(0);
    expect(cache.references(pod).secrets.size).toBe(0);
  });

  test("takes 'not found' for an answer, and notices when the object appears", async () => {
    expect(await read()).toEqual({ kind: "absent" });
    kube.put(SECRET);
    await settle();
    expect(changed).toEqual(["u1"]);
    expect(cache.references(pod).secrets.get("s")).toMatchObject({ kind: "found" });
  });

  test("notices when an object goes", async () => {
    kube.put(SECRET);
    await read();
    kube.remove(SECRET);
    await settle();
    expect(cache.references(pod).secrets.get("s")).toEqual({ kind: "absent" });
  });

  test("never takes a failure for absence, and reads again soon", async () => {
    kube.put(SECRET);
    kube.intercept = () => {
      throw failure(503, "ServiceUnavailable");
    };
    expect(await read()).toEqual({ kind: "unknown", message: "the server said 503" });
    const unknown = cache.version("u1");
    kube.intercept = () => undefined;
    await clock.advance(5_000);
    expect(changed).toEqual(["u1"]);
    expect(cache.references(pod).secrets.get("s")).toMatchObject({ kind: "found" });
    expect(cache.version("u1")).not.toBe(unknown);
  });

  test("takes no 404 but the API server's own for absence", async () => {
    kube.intercept = ({ query }) => {
      if (query?.["fieldSelector"]) throw failure(403, "Forbidden");
      throw failure(404, "HTTP404");
    };
    expect(await read()).toEqual({ kind: "unknown", message: "the server said 404" });
  });

  test("hears of changes of one object while another cannot be read", async () => {
    kube.put(SECRET);
    kube.intercept = (request) => {
      if (isAbout(request, "forbidden")) throw failure(403, "Forbidden");
    };
    const both = [...refs, { kind: "secret" as const, name: "forbidden", optional: true }];
    cache.track(pod, both);
    await cache.read("u1", done.signal);
    await settle();
    const before = cache.version("u1");
    kube.put(SECRET, { data: { k: "bmV3" } });
    await settle();
    expect(cache.version("u1")).not.toBe(before);
  });

  test.each([".", "..", "a/b", "n".repeat(254)])("asks for nothing that cannot be there: %s", async (name) => {
    cache.track(pod, [{ kind: "secret", name, optional: true }]);
    await cache.read("u1", done.signal);
    await clock.advance(600_000);
    expect(cache.references(pod).secrets.get(name)).toMatchObject({
      kind: "unknown",
      message: expect.stringContaining("invalid resource name") as unknown,
    });
    expect(kube.requests).toEqual([]);
  });

  test("waits no longer for an answer when the pod goes", async () => {
    kube.intercept = () => new Promise(() => {});
    cache.track(pod, refs);
    const reading = cache.read("u1", done.signal);
    cache.release("u1");
    await reading;
    expect(cache.references(pod).secrets.size).toBe(0);
  });

  test("wakes the pods that were rendered before the Services were listed", async () => {
    kube.put(SECRET);
    await read();
    expect(changed).toEqual([]);
    void services.run(done.signal);
    await settle();
    expect(changed).toEqual(["u1"]);
  });

  test("holds no more of one pod's objects than a pod may have", async () => {
    const names = Array.from({ length: 40 }, (_, i) => `s${i}`);
    for (const name of names) kube.put(`/api/v1/namespaces/shop/secrets/${name}`, { data: { k: "x".repeat(1 << 20) } });
    cache.track(
      pod,
      names.map((name) => ({ kind: "secret", name, optional: false })),
    );
    await expect(cache.read("u1", done.signal)).rejects.toThrow(
      "the ConfigMaps and Secrets that the pod refers to have more than 16777216 bytes",
    );
    await settle();
    expect(kube.watches).toBe(0);
    expect(kube.requests.filter(({ method }) => method === "GET").length).toBeLessThan(names.length);
  });

  describe("of one namespace's pods", () => {
    const inNamespace = (namespace: string, uid: string) => podWith({}, { uid, namespace });
    async function readOne(uid: string, name: string, namespace = "shop") {
      const one = inNamespace(namespace, uid);
      cache.track(one, [{ kind: "secret", name, optional: false }]);
      await cache.read(uid, done.signal);
      return cache.references(one).secrets.get(name)?.kind;
    }
    const large = { k: "x".repeat(1 << 20) };
    const full = (names: readonly string[]) => {
      for (const name of names) kube.put(`/api/v1/namespaces/shop/secrets/${name}`, { data: large });
    };
    const numbered = (count: number) => Array.from({ length: count }, (_, i) => `s${i}`);
    const tooMuch = `the ConfigMaps and Secrets that this node's pods of namespace "shop" refer to`;

    test("no more is held than one namespace may have, and other namespaces do not wait for it", async () => {
      full(numbered(80));
      const results = [];
      for (const name of numbered(80))
        results.push(await readOne(`uid-${name}`, name).catch((thrown: Error) => thrown.message));
      const held = results.filter((result) => result === "found").length;
      expect(held).toBeGreaterThan(50);
      expect(held).toBeLessThan(65);
      expect(results.at(-1)).toBe(`${tooMuch} have more than 67108864 bytes`);
      kube.put("/api/v1/namespaces/other/secrets/s", { data: large });
      expect(await readOne("other-uid", "s", "other")).toBe("found");
    });

    test("what their metadata holds counts too", async () => {
      const metadata = { annotations: { note: "x".repeat(250_000) } };
      const outcomes = [];
      for (let index = 0; index < 300; index++) {
        kube.put(`/api/v1/namespaces/shop/secrets/a${index}`, { metadata });
        outcomes.push(await readOne(`uid-${index}`, `a${index}`).catch(() => "refused"));
      }
      expect(outcomes.at(-1)).toBe("refused");
    });

    test("no more objects are followed than one namespace may have", async () => {
      const outcomes = [];
      for (const name of numbered(2001))
        outcomes.push(await readOne(`uid-${name}`, name).catch((thrown: Error) => thrown.message));
      expect(outcomes.slice(-2)).toEqual(["absent", `${tooMuch} are more than 2000`]);
      expect(kube.watches).toBeLessThanOrEqual(2000);
    });

    test("one that was held back is looked at again when others have made room", async () => {
      full(numbered(80));
      for (const name of numbered(80)) await readOne(`uid-${name}`, name).catch(() => undefined);
      await expect(readOne("late", "s79")).rejects.toThrow(tooMuch);
      const before = cache.version("late");
      for (const name of numbered(40)) cache.release(`uid-${name}`);
      expect(cache.version("late")).not.toBe(before);
      expect(await readOne("late", "s79")).toBe("found");
    });

    test("objects that grow are let go of by the pod that hears of it", async () => {
      const names = numbered(70);
      for (const name of names) kube.put(`/api/v1/namespaces/shop/secrets/${name}`, { data: { k: "small" } });
      for (const name of names) expect(await readOne(`uid-${name}`, name)).toBe("found");
      await settle();
      full(names);
      await settle();
      expect(changed).toContain("uid-s69");
      await expect(cache.read("uid-s69", done.signal)).rejects.toThrow(tooMuch);
      expect(cache.references(inNamespace("shop", "uid-s69")).secrets.size).toBe(0);
    });
  });

  describe("what is forbidden", () => {
    const forbid = () => {
      kube.put(SECRET);
      kube.intercept = () => {
        throw failure(403, "Forbidden");
      };
    };

    test("is asked for less and less often, in the end once a minute, and counted", async () => {
      let denied = 0;
      const parts = { kube, clock, random: () => 0, logger: silentLogger };
      cache = new ReferenceCache({ ...parts, services, onChange: () => {}, onDenied: () => denied++ });
      forbid();
      await read();
      const at = [denied];
      for (let i = 0; i < 3; i++) {
        await clock.advance(100 * 2 ** i);
        at.push(denied);
      }
      expect(at).toEqual([1, 2, 3, 4]);
      await clock.advance(3_600_000);
      const perHour = denied;
      await clock.advance(3_600_000);
      expect(denied - perHour).toBe(60);
    });

    test("for a moment, because the pod is new, costs a moment, and is watched", async () => {
      forbid();
      expect(await read()).toMatchObject({ kind: "unknown" });
      expect(cache.isEarly("u1")).toBe(true);
      kube.intercept = () => undefined;
      await clock.advance(100);
      expect(changed).toEqual(["u1"]);
      expect(cache.references(pod).secrets.get("s")).toMatchObject({ kind: "found" });
      expect(kube.watches).toBe(1);
    });

    test("is no longer early after some tries, of which the pods hear", async () => {
      forbid();
      await read();
      await clock.advance(600);
      expect([changed, cache.isEarly("u1")]).toEqual([[], true]);
      await clock.advance(100);
      expect([changed, cache.isEarly("u1")]).toEqual([["u1"], false]);
    });

    test("to be watched for a moment only is watched soon after", async () => {
      kube.put(SECRET);
      kube.intercept = ({ query }) => {
        if (query?.["fieldSelector"]) throw failure(403, "Forbidden");
      };
      expect(await read()).toMatchObject({ kind: "found" });
      kube.intercept = () => undefined;
      await clock.advance(100);
      expect(kube.watches).toBe(1);
    });

    test("to be listed in all of a namespace is not asked for again by each object", async () => {
      const names = Array.from({ length: 50 }, (_, i) => `s${i}`);
      for (const name of ["s", ...names]) kube.put(`/api/v1/namespaces/shop/secrets/${name}`);
      kube.intercept = ({ query }) => {
        if (query?.["fieldSelector"]) throw failure(403, "Forbidden");
      };
      await read();
      await clock.advance(10_000);
      const before = kube.requests.length;
      cache.track(
        pod,
        names.map((name) => ({ kind: "secret", name, optional: false })),
      );
      await cache.read("u1", done.signal);
      expect(kube.requests).toHaveLength(before + names.length);
    });
  });

  test("keeps what it knows when a later read fails", async () => {
    kube.put(SECRET);
    kube.intercept = ({ query }) => {
      if (query?.["fieldSelector"]) throw failure(403, "Forbidden");
    };
    await read();
    kube.intercept = () => {
      throw failure(500, "InternalError");
    };
    expect(await read()).toMatchObject({ kind: "found" });
  });

  test("does not watch an immutable object", async () => {
    kube.put(SECRET, { immutable: true });
    await read();
    await read(other);
    expect(kube.requests).toHaveLength(1);
  });

  test("stops watching an object that becomes immutable", async () => {
    kube.put(SECRET);
    await read();
    kube.put(SECRET, { immutable: true });
    await settle();
    expect(kube.watches).toBe(0);
  });

  test("reads again every minute where it may not watch", async () => {
    kube.put(SECRET);
    kube.intercept = ({ query }) => {
      if (query?.["fieldSelector"]) throw failure(403, "Forbidden");
    };
    await read();
    kube.put(SECRET, { data: { k: "bmV3" } });
    await clock.advance(59_000);
    expect(changed).toEqual([]);
    await clock.advance(1_000);
    expect(changed).toEqual(["u1"]);
  });

  test("knows the services of the pod's namespace and of default, once they are listed", async () => {
    kube.put("/api/v1/namespaces/default/services/kubernetes");
    kube.put("/api/v1/namespaces/shop/services/web");
    kube.put("/api/v1/namespaces/foreign/services/web");
    expect(cache.references(pod).services).toBeUndefined();
    void services.run(done.signal);
    await services.firstList(done.signal);
    expect(
      cache
        .references(pod)
        .services?.map(({ metadata }) => metadata?.namespace)
        .sort(),
    ).toEqual(["default", "shop"]);
  });
});
