/**
 * Leader election over a Lease, as client-go does it: the holder renews the lease every `retryPeriod`; the others take
 * it when it has not changed for `leaseDuration` by their own clock. Clocks of different hosts are never compared.
 *
 * An election alone does not keep a paused process from acting on a leadership that it lost meanwhile. So every effect
 * calls `guard` first, which refuses as soon as the last renewal is older than `renewDeadline`; and the protocol in
 * `pods/` tolerates two agents anyhow.
 */
import type { Logger } from "../telemetry/logger.ts";
import { rfc3339Micro, type Clock } from "../util/clock.ts";
import { VmletError } from "../util/errors.ts";
import type { Random } from "../util/random.ts";
import { isAlreadyExists, isConflict, isNotFound } from "./errors.ts";
import type { Kube } from "./kube.ts";
import { leasePath, leasesPath } from "./paths.ts";
import type { Lease } from "./wire.ts";

export class NotLeaderError extends VmletError {
  readonly code = "NOT_LEADER";
}

interface LeaderElectionOptions {
  kube: Kube;
  clock: Clock;
  random: Random;
  logger: Logger;
  namespace: string;
  name: string;
  /** Unique to this process. */
  identity: string;
  /** Others wait this long, from the last change that they saw. Default 15 s. */
  leaseDurationMs?: number | undefined;
  /** A leader that could not renew for this long stops leading. Default 10 s. */
  renewDeadlineMs?: number | undefined;
  /** Default 2 s. */
  retryPeriodMs?: number | undefined;
  onLeading?: ((leading: boolean) => void) | undefined;
}

export class LeaderElector {
  readonly #options: LeaderElectionOptions;
  readonly #leaseDurationMs: number;
  readonly #renewDeadlineMs: number;
  readonly #retryPeriodMs: number;
  /** The lease as last seen, and when it was seen to change by our own clock. */
  #seen: { lease: Lease; changedAt: number } | undefined;
  /** When our last successful renewal was sent, by both clocks; undefined while we do not lead. */
  #renewed: { monotonic: number; wall: number } | undefined;

  constructor(options: LeaderElectionOptions) {
    this.#options = options;
    this.#leaseDurationMs = options.leaseDurationMs ?? 15_000;
    this.#renewDeadlineMs = options.renewDeadlineMs ?? 10_000;
    this.#retryPeriodMs = options.retryPeriodMs ?? 2_000;
  }

  get leader(): string | undefined {
    return this.#seen?.lease.spec?.holderIdentity || undefined;
  }

  /** @throws NotLeaderError unless the lease was renewed recently enough that no other process can hold it */
  readonly guard = (): void => {
    const { clock } = this.#options;
    // The monotonic clock of a machine that was paused stood still with it; its wall clock is set right soon
    // afterwards. One that is set forwards for another reason costs no more than the time until the next renewal.
    const agesMs =
      this.#renewed === undefined
        ? [Infinity]
        : [clock.monotonic() - this.#renewed.monotonic, clock.now() - this.#renewed.wall];
    if (Math.max(...agesMs) > this.#renewDeadlineMs) {
      throw new NotLeaderError("this agent does not hold the leader lease any more", { retryable: false });
    }
  };

  /**
   * Waits for the leadership, calls `lead` with a signal that aborts when it is lost, and resolves when `lead` has. A
   * leadership that is given up in order (the signal aborts) is released, so that the next leader need not wait.
   */
  async run(signal: AbortSignal, lead: (leading: AbortSignal) => Promise<void>): Promise<void> {
    const { logger, name, identity } = this.#options;
    while (!(await this.#tryAcquire(signal))) {
      if (signal.aborted) return;
      await this.#pause(signal);
    }
    if (signal.aborted) return;
    logger.info({ lease: name, identity }, "This agent leads");
    this.#options.onLeading?.(true);
    const lost = new AbortController();
    const leading = AbortSignal.any([signal, lost.signal]);
    const renewing = this.#renew(leading).then(() => {
      if (!signal.aborted) lost.abort(new NotLeaderError("the leader lease was lost"));
    });
    try {
      await lead(leading);
    } finally {
      lost.abort(new NotLeaderError("leading has ended"));
      await renewing;
      this.#options.onLeading?.(false);
      if (signal.aborted) await this.#release();
      this.#renewed = undefined;
    }
  }

  /** Resolves when the lease could not be renewed in time, was taken, or the signal aborted. */
  async #renew(signal: AbortSignal): Promise<void> {
    const { clock, logger, name } = this.#options;
    while (!signal.aborted) {
      await this.#pause(signal);
      if (signal.aborted) return;
      const held = await this.#tryAcquire(signal);
      if (!held && this.#seen?.lease.spec?.holderIdentity !== this.#options.identity) {
        this.#renewed = undefined;
        logger.warn({ lease: name, leader: this.leader }, "The leader lease was taken by another agent");
        return;
      }
      if (!held && clock.monotonic() - this.#renewed!.monotonic > this.#renewDeadlineMs) {
        logger.warn({ lease: name }, "The leader lease could not be renewed in time");
        return;
      }
    }
  }

  async #pause(signal: AbortSignal): Promise<void> {
    // client-go's JitterFactor: 1.2 of the period on top at most would delay a takeover; half is enough to spread.
    await this.#options.clock
      .sleep(this.#retryPeriodMs * (1 + this.#options.random() / 2), signal)
      .catch(() => undefined);
  }

  /** True when the lease is ours now. */
  async #tryAcquire(signal: AbortSignal): Promise<boolean> {
    const { kube, clock, logger, namespace, name, identity } = this.#options;
    const sentAt = { monotonic: clock.monotonic(), wall: clock.now() };
    const limits = { signal, timeoutMs: Math.max(1_000, this.#renewDeadlineMs / 2), lane: "lease" as const };
    try {
      let current: Lease;
      try {
        current = await kube.request<Lease>({ method: "GET", path: leasePath(namespace, name), ...limits });
      } catch (thrown) {
        if (!isNotFound(thrown)) throw thrown;
        const body = {
          apiVersion: "coordination.k8s.io/v1",
          kind: "Lease",
          metadata: { namespace, name },
          spec: this.#spec(undefined),
        };
        const created = await kube.request<Lease>({ method: "POST", path: leasesPath(namespace), body, ...limits });
        return this.#won(created, sentAt);
      }
      this.#observe(current);
      const holder = current.spec?.holderIdentity;
      if (holder && holder !== identity && clock.monotonic() - this.#seen!.changedAt < this.#leaseDurationMs)
        return false;
      const body = { ...current, spec: this.#spec(current) };
      return this.#won(
        await kube.request<Lease>({ method: "PUT", path: leasePath(namespace, name), body, ...limits }),
        sentAt,
      );
    } catch (thrown) {
      if (signal.aborted || isConflict(thrown) || isAlreadyExists(thrown)) return false;
      logger.warn({ lease: `${namespace}/${name}`, err: thrown }, "The leader lease could not be read or written");
      return false;
    }
  }

  #won(lease: Lease, sentAt: { monotonic: number; wall: number }): boolean {
    this.#observe(lease);
    this.#renewed = sentAt;
    return true;
  }

  #observe(lease: Lease): void {
    if (this.#seen?.lease.metadata?.resourceVersion === lease.metadata?.resourceVersion) return;
    this.#seen = { lease, changedAt: this.#options.clock.monotonic() };
  }

  #spec(current: Lease | undefined) {
    const { identity, clock } = this.#options;
    const now = rfc3339Micro(clock.now());
    const ours = current?.spec?.holderIdentity === identity;
    return {
      holderIdentity: identity,
      leaseDurationSeconds: Math.ceil(this.#leaseDurationMs / 1000),
      acquireTime: ours ? (current.spec.acquireTime ?? now) : now,
      renewTime: now,
      leaseTransitions: (current?.spec?.leaseTransitions ?? 0) + (current !== undefined && !ours ? 1 : 0),
    };
  }

  async #release(): Promise<void> {
    const { kube, namespace, name, identity, logger } = this.#options;
    const signal = AbortSignal.timeout(2_000);
    try {
      const current = await kube.request<Lease>({
        method: "GET",
        path: leasePath(namespace, name),
        signal,
        lane: "lease",
      });
      if (current.spec?.holderIdentity !== identity) return;
      const body = { ...current, spec: { ...current.spec, holderIdentity: "", leaseDurationSeconds: 1 } };
      await kube.request({ method: "PUT", path: leasePath(namespace, name), body, signal, lane: "lease" });
    } catch (thrown) {
      logger.warn({ lease: name, err: thrown }, "The leader lease could not be released; it will run out");
    }
  }
}
