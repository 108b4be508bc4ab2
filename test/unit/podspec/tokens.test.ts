import { beforeEach, describe, expect, it } from "vitest";
import { TokenManager } from "../../../src/podspec/tokens.ts";
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

  it("asks for a token that is bound to the pod", async () => {
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

  it("asks once, however many want it at the same time", async () => {
    await Promise.all([get(), get(), get()]);
    expect(issued).toBe(1);
  });

  it("keeps a token until 80 % of its life is over, then replaces it and says so", async () => {
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

  it("replaces a long-lived token after a day", async () => {
    await get({ audience: "", expirationSeconds: 30 * 24 * HOUR_S });
    await clock.advance(24 * HOUR_S * 1000);
    expect(changed).toEqual(["0a1b"]);
  });

  it("keeps the old token while it is valid when a refresh fails, and tries again", async () => {
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

  it("gives no token that has expired", async () => {
    await get();
    kube.intercept = () => {
      throw failure(503, "ServiceUnavailable");
    };
    await clock.advance(HOUR_S * 1000);
    expect(await get()).toEqual({ kind: "unknown", message: "token expired and refresh failed: the server said 503" });
  });

  it("does not know a token that was never issued", async () => {
    kube.intercept = () => {
      throw failure(403, "Forbidden");
    };
    expect(await get()).toEqual({ kind: "unknown", message: "the server said 403" });
    expect(tokens.version("0a1b", [{ audience: "", expirationSeconds: HOUR_S }])).toBeUndefined();
  });

  it("lets one caller give up without harm to the others", async () => {
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

  it("forgets a pod that is gone, with its timers", async () => {
    await get();
    tokens.release("0a1b");
    expect(clock.pending).toBe(0);
    await settle();
    expect(tokens.version("0a1b", [{ audience: "", expirationSeconds: HOUR_S }])).toBeUndefined();
  });

  it("never logs a token", async () => {
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
