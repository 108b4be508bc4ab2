import { beforeEach, describe, expect, test } from "vitest";
import { TokenManager } from "../../../src/podspec/references/tokens.ts";
import type { Logger } from "../../../src/telemetry/logger.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { settle, VirtualClock } from "../../support/virtual-clock.ts";
import { failure, FakeKube } from "./fake-kube.ts";
import { podWith } from "./fixtures.ts";

const HOUR_S = 3600;
const signal = new AbortController().signal;
const pod = podWith({ serviceAccountName: "robot" });

describe("TokenManager", () => {
  let kube: FakeKube;
  let clock: VirtualClock;
  let changed: string[];
  let issued: number;
  let tokens: TokenManager;

  beforeEach(() => {
    kube = new FakeKube();
    clock = new VirtualClock();
    changed = [];
    issued = 0;
    kube.intercept = issue;
    tokens = new TokenManager({
      kube,
      clock,
      random: () => 0,
      logger: silentLogger,
      onChange: (uid) => changed.push(uid),
    });
  });

  function issue() {
    issued++;
    return {
      status: { token: `token-${issued}`, expirationTimestamp: new Date(clock.now() + HOUR_S * 1000).toISOString() },
    };
  }

  const get = async (wish = { audience: "", expirationSeconds: HOUR_S }) =>
    (await tokens.get(pod, [wish], signal)).get(`${wish.expirationSeconds}/${wish.audience}`);

  test("asks for a token that is bound to the pod", async () => {
    expect(await get({ audience: "vault", expirationSeconds: 600 })).toEqual({ kind: "found", object: "token-1" });
    expect(kube.requests).toEqual([
      {
        method: "POST",
        path: "/api/v1/namespaces/shop/serviceaccounts/robot/token",
        body: {
          apiVersion: "authentication.k8s.io/v1",
          kind: "TokenRequest",
          spec: {
            audiences: ["vault"],
            expirationSeconds: 600,
            boundObjectRef: { apiVersion: "v1", kind: "Pod", name: "web", uid: "0a1b" },
          },
        },
      },
    ]);
  });

  test("asks once, however many want it at the same time", async () => {
    await Promise.all([get(), get(), get()]);
    expect(issued).toBe(1);
  });

  test("keeps a token until 80 % of its life is over, then replaces it and says so", async () => {
    await get();
    await clock.advance(HOUR_S * 800 - 1);
    expect(await get()).toEqual({ kind: "found", object: "token-1" });
    expect(changed).toEqual([]);
    const before = tokens.version("0a1b", [{ audience: "", expirationSeconds: HOUR_S }]);
    await clock.advance(1);
    expect(changed).toEqual(["0a1b"]);
    expect(await get()).toEqual({ kind: "found", object: "token-2" });
    expect(tokens.version("0a1b", [{ audience: "", expirationSeconds: HOUR_S }])).not.toBe(before);
  });

  test("replaces a long-lived token after a day", async () => {
    const life = 30 * 24 * HOUR_S;
    kube.intercept = () => ({
      status: { ...issue().status, expirationTimestamp: new Date(clock.now() + life * 1000).toISOString() },
    });
    await get({ audience: "", expirationSeconds: life });
    await clock.advance(24 * HOUR_S * 1000);
    expect(changed).toEqual(["0a1b"]);
  });

  test("replaces each of many tokens, though their timers fire a little early", async () => {
    tokens = new TokenManager({
      kube,
      clock,
      random: Math.random,
      logger: silentLogger,
      onChange: (uid) => changed.push(uid),
    });
    const uids = Array.from({ length: 100 }, (_, i) => `uid-${i}`);
    const wish = { audience: "", expirationSeconds: HOUR_S };
    await Promise.all(uids.map((uid) => tokens.get({ ...pod, metadata: { ...pod.metadata, uid } }, [wish], signal)));
    await clock.advance(HOUR_S * 800);
    expect(changed.toSorted()).toEqual(uids.toSorted());
  });

  test("replaces it in time though the wall clock was set back, again and again", async () => {
    await get();
    clock.step(-12 * HOUR_S * 1000);
    await clock.advance(HOUR_S * 800);
    clock.step(-50);
    await clock.advance(HOUR_S * 800);
    expect(changed).toEqual(["0a1b", "0a1b"]);
  });

  test("is due when the wall clock has passed it, as after a sleep of the host", async () => {
    await get();
    const wishes = [{ audience: "", expirationSeconds: HOUR_S }];
    const before = tokens.version("0a1b", wishes);
    clock.step(HOUR_S * 800);
    expect(tokens.version("0a1b", wishes)).not.toBe(before);
    expect(await get()).toEqual({ kind: "found", object: "token-2" });
    expect(await get()).toEqual({ kind: "found", object: "token-2" });
  });

  describe("of which the server shortened the life", () => {
    const day = { audience: "vault", expirationSeconds: 24 * HOUR_S };

    test("is replaced by what the server said, again and again", async () => {
      await get(day);
      for (let i = 0; i < 3; i++) await clock.advance(HOUR_S * 800);
      expect(issued).toBe(4);
      expect(changed).toHaveLength(3);
    });

    test.each([
      ["ahead", 12 * HOUR_S * 1000],
      ["behind", -12 * HOUR_S * 1000],
    ])("is replaced in time by an agent whose clock is %s", async (_, skewMs) => {
      kube.intercept = () => {
        const { status } = issue();
        const ms = Date.parse(status.expirationTimestamp) - skewMs;
        return {
          metadata: { creationTimestamp: new Date(ms - HOUR_S * 1000).toISOString() },
          status: { ...status, expirationTimestamp: new Date(ms).toISOString() },
        };
      };
      await get(day);
      await clock.advance(HOUR_S * 800 - 1);
      expect(issued).toBe(1);
      await clock.advance(1);
      expect(issued).toBe(2);
    });
  });

  test("keeps to the life that was asked for where the server extended it", async () => {
    kube.intercept = () => ({
      status: {
        ...issue().status,
        expirationTimestamp: new Date(clock.now() + 365 * 24 * HOUR_S * 1000).toISOString(),
      },
    });
    await get();
    await clock.advance(HOUR_S * 800);
    expect(issued).toBe(2);
  });

  test("makes no storm of one that is over already by the own clock", async () => {
    kube.intercept = () => ({
      status: { ...issue().status, expirationTimestamp: new Date(clock.now() - HOUR_S * 1000).toISOString() },
    });
    await get();
    await clock.advance(HOUR_S * 800 - 1);
    expect(issued).toBe(1);
  });

  test("that is used once is asked for each time, and never renewed", async () => {
    const wish = { audience: "registry", expirationSeconds: 600 };
    const once = async () => (await tokens.issue(pod, [wish], signal)).get("600/registry");
    expect([await once(), await once()]).toEqual([
      { kind: "found", object: "token-1" },
      { kind: "found", object: "token-2" },
    ]);
    expect(clock.pending).toBe(0);
    kube.intercept = () => {
      throw failure(403, "Forbidden");
    };
    expect(await once()).toEqual({ kind: "unknown", message: "the server said 403" });
  });

  test("ends requests and timers when it is closed, and asks for nothing more", async () => {
    await get();
    let asked: AbortSignal | undefined;
    kube.request = (request) => {
      asked = request.signal;
      return new Promise((_, reject) => request.signal.addEventListener("abort", () => reject(new Error("aborted"))));
    };
    const pending = get({ audience: "slow", expirationSeconds: HOUR_S });
    await settle();
    tokens.close();
    expect(asked?.aborted).toBe(true);
    expect(await pending).toMatchObject({ kind: "unknown" });
    expect(clock.pending).toBe(0);
    asked = undefined;
    expect(await get()).toMatchObject({ kind: "unknown" });
    expect(asked).toBeUndefined();
  });

  test("keeps the old token while it is valid when a refresh fails, and tries again", async () => {
    await get();
    kube.intercept = () => {
      throw failure(503, "ServiceUnavailable");
    };
    await clock.advance(HOUR_S * 800);
    expect(await get()).toEqual({ kind: "found", object: "token-1" });
    kube.intercept = issue;
    await clock.advance(30_000);
    expect(changed).toEqual(["0a1b"]);
  });

  test("gives no token that has expired", async () => {
    await get();
    kube.intercept = () => {
      throw failure(503, "ServiceUnavailable");
    };
    await clock.advance(HOUR_S * 1000);
    expect(await get()).toEqual({ kind: "unknown", message: "token expired and refresh failed: the server said 503" });
  });

  test("says of one that could not be replaced that it is over, and counts each failure", async () => {
    let failures = 0;
    const parts = { kube, clock, random: () => 0, logger: silentLogger, onFailure: () => failures++ };
    tokens = new TokenManager({ ...parts, onChange: (uid) => changed.push(uid) });
    await get();
    kube.intercept = () => {
      throw failure(503, "ServiceUnavailable");
    };
    await clock.advance(HOUR_S * 900);
    const version = () => tokens.version("0a1b", [{ audience: "", expirationSeconds: HOUR_S }]);
    expect(changed).toEqual([]);
    expect(failures).toBeGreaterThan(0);
    const due = version();
    await clock.advance(HOUR_S * 100 + 60_000);
    expect(changed).toContain("0a1b");
    const over = version();
    expect(over).not.toBe(due);
    await clock.advance(HOUR_S * 100);
    expect(version()).toBe(over);
  });

  test("does not know a token that was never issued", async () => {
    kube.intercept = () => {
      throw failure(403, "Forbidden");
    };
    expect(await get()).toEqual({ kind: "unknown", message: "the server said 403" });
    expect(tokens.version("0a1b", [{ audience: "", expirationSeconds: HOUR_S }])).toBeUndefined();
  });

  test("lets one caller give up without harm to the others", async () => {
    let finish: (value: unknown) => void = () => {};
    kube.intercept = () => new Promise((resolve) => (finish = resolve));
    const impatient = new AbortController();
    const wish = { audience: "", expirationSeconds: HOUR_S };
    const first = tokens.get(pod, [wish], impatient.signal);
    const second = tokens.get(pod, [wish], signal);
    impatient.abort(new Error("gave up"));
    await expect(first).rejects.toThrow("gave up");
    finish(issue());
    expect((await second).get(`${HOUR_S}/`)).toEqual({ kind: "found", object: "token-1" });
  });

  test("forgets a pod that is gone, with its timers", async () => {
    await get();
    tokens.release("0a1b");
    expect(clock.pending).toBe(0);
    await settle();
    expect(tokens.version("0a1b", [{ audience: "", expirationSeconds: HOUR_S }])).toBeUndefined();
  });

  test("never logs a token", async () => {
    const lines: string[] = [];
    const record = (fields: object, message: string) => void lines.push(JSON.stringify(fields) + message);
    const logger: Logger = { debug: record, info: record, warn: record, error: record, child: () => logger };
    tokens = new TokenManager({ kube, clock, random: () => 0, logger, onChange: () => {} });
    await get();
    kube.intercept = () => {
      throw failure(503, "ServiceUnavailable");
    };
    await clock.advance(HOUR_S * 900);
    expect(lines.length).toBeGreaterThan(0);
    expect(lines.filter((line) => line.includes("token-1"))).toEqual([]);
  });
});
