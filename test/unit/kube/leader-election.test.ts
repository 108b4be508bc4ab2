import { describe, expect, test } from "vitest";
import { KubeApiError } from "../../../src/kube/errors.ts";
import type { Kube, KubeRequest } from "../../../src/kube/kube.ts";
import { LeaderElector, NotLeaderError } from "../../../src/kube/leader-election.ts";
import type { Lease } from "../../../src/kube/wire.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { settle, VirtualClock } from "../../support/virtual-clock.ts";

/** One Lease with optimistic locking; `down` makes it unreachable. */
class LeaseServer {
  lease: Lease | undefined;
  down = false;
  #version = 0;

  kubeFor(isCutOff: () => boolean = () => false): Kube {
    return {
      request: async <T>(request: KubeRequest) => {
        if (this.down || isCutOff()) throw new KubeApiError("unreachable", { status: 0, reason: "Timeout" });
        return this.#serve(request) as T;
      },
      watch: () => {
        throw new Error("not used");
      },
    };
  }

  #serve({ method, body }: KubeRequest): Lease {
    const sent = body as Lease;
    if (method === "GET") {
      if (this.lease === undefined) throw new KubeApiError("none", { status: 404, reason: "NotFound" });
      return this.lease;
    }
    if (method === "POST" && this.lease !== undefined)
      throw new KubeApiError("exists", { status: 409, reason: "AlreadyExists" });
    if (method === "PUT" && sent.metadata?.resourceVersion !== this.lease?.metadata?.resourceVersion) {
      throw new KubeApiError("conflict", { status: 409, reason: "Conflict" });
    }
    this.lease = { ...sent, metadata: { ...sent.metadata, resourceVersion: String(++this.#version) } };
    return this.lease;
  }
}

function candidate(server: LeaseServer, identity: string, clock: VirtualClock, isCutOff?: () => boolean) {
  const elector = new LeaderElector({
    kube: server.kubeFor(isCutOff),
    clock,
    random: () => 0,
    logger: silentLogger,
    namespace: "vmlet",
    name: "vmlet",
    identity,
  });
  const stop = new AbortController();
  const state = { leading: false, reason: undefined as unknown };
  const run = elector.run(stop.signal, (leading) => {
    state.leading = true;
    return new Promise((resolve) => {
      leading.addEventListener("abort", () => {
        state.leading = false;
        state.reason = leading.reason;
        resolve();
      });
    });
  });
  return { elector, state, run, stop: () => stop.abort(new Error("stopped")) };
}

describe("two candidates", () => {
  test("have one leader", async () => {
    const server = new LeaseServer();
    const clock = new VirtualClock();
    const a = candidate(server, "a", clock);
    await settle();
    const b = candidate(server, "b", clock);
    await clock.advance(60_000);
    expect([a.state.leading, b.state.leading]).toEqual([true, false]);
    expect(server.lease!.spec!.holderIdentity).toBe("a");
  });

  test("hand over at once when the leader stops in order", async () => {
    const server = new LeaseServer();
    const clock = new VirtualClock();
    const a = candidate(server, "a", clock);
    await settle();
    const b = candidate(server, "b", clock);
    await clock.advance(5_000);
    a.stop();
    await a.run;
    await clock.advance(3_000);
    expect([b.state.leading, server.lease!.spec!.leaseTransitions]).toEqual([true, 1]);
  });

  test("hand over after the lease duration when the leader is cut off", async () => {
    const server = new LeaseServer();
    const clock = new VirtualClock();
    let cut = false;
    const a = candidate(server, "a", clock, () => cut);
    await settle();
    const b = candidate(server, "b", clock);
    await clock.advance(5_000);
    cut = true;
    await clock.advance(13_000);
    expect([a.state.leading, b.state.leading]).toEqual([false, false]);
    await clock.advance(7_000);
    expect(b.state.leading).toBe(true);
  });
});

describe("a leader", () => {
  test("may not act once its lease is too old to be sure of, even before it knows", async () => {
    const server = new LeaseServer();
    const clock = new VirtualClock();
    const a = candidate(server, "a", clock);
    await settle();
    expect(a.elector.guard).not.toThrow();
    // The process is paused: time goes by and nothing of it runs.
    const paused = new LeaderElector({
      kube: server.kubeFor(),
      clock,
      random: () => 0,
      logger: silentLogger,
      namespace: "n",
      name: "n",
      identity: "p",
    });
    expect(paused.guard).toThrow(NotLeaderError);
    server.down = true;
    await clock.advance(11_000);
    expect(a.elector.guard).toThrow(NotLeaderError);
  });

  test("may not act after its whole machine was paused, until it knows that it still leads", async () => {
    const server = new LeaseServer();
    const clock = new VirtualClock();
    const a = candidate(server, "a", clock);
    await settle();
    // The monotonic clock stood still with the machine; the wall clock has been set right.
    clock.step(60_000);
    expect(a.elector.guard).toThrow(NotLeaderError);
    await clock.advance(4_000);
    expect(a.elector.guard).not.toThrow();
  });

  test("may not act from the moment at which it sees that another leads", async () => {
    const server = new LeaseServer();
    const clock = new VirtualClock();
    const a = candidate(server, "a", clock);
    await settle();
    const spec = { ...server.lease!.spec, holderIdentity: "b" };
    server.lease = { ...server.lease, spec, metadata: { resourceVersion: "taken" } };
    await clock.advance(4_000);
    expect(a.elector.guard).toThrow(NotLeaderError);
  });

  test("goes on leading when the wall clock is set back or forwards", async () => {
    const server = new LeaseServer();
    const clock = new VirtualClock();
    const a = candidate(server, "a", clock);
    const b = candidate(server, "b", clock);
    await clock.advance(5_000);
    for (const ms of [-86_400_000, 3 * 86_400_000]) {
      clock.step(ms);
      await clock.advance(60_000);
    }
    expect([a.state.leading, b.state.leading]).toEqual([true, false]);
  });

  test("is told when it has lost", async () => {
    const server = new LeaseServer();
    const clock = new VirtualClock();
    const a = candidate(server, "a", clock);
    await settle();
    server.down = true;
    await clock.advance(15_000);
    await a.run;
    expect([a.state.leading, a.state.reason]).toEqual([false, expect.any(NotLeaderError)]);
  });

  test("survives a short outage of the API server", async () => {
    const server = new LeaseServer();
    const clock = new VirtualClock();
    const a = candidate(server, "a", clock);
    await settle();
    server.down = true;
    await clock.advance(6_000);
    server.down = false;
    await clock.advance(6_000);
    expect(a.state.leading).toBe(true);
    expect(a.elector.guard).not.toThrow();
  });
});
