/**
 * The runtime's containers of this backend: who is started, how it ended, what it has written. The runtime keeps all of
 * that; here is only who wants to hear of it. Changes come as events; a list now and then finds what events have
 * missed, or all where the runtime has none.
 */
import {
  type Clock,
  type Logger,
  type ProcessStreams,
  type StreamOptions,
} from "../../../../src/provider/kit/index.ts";
import { ProviderError } from "../../../../src/provider/kit/index.ts";
import { type ContainerRef, KILLED_EXIT } from "../../engine.ts";
import type { RecordedExit, ShimEvents, Shims, ShimWatch, StartCommand } from "../../engine.ts";
import { type Container, ContainerState, type ContainerStatus, PodSandboxState } from "./api.gen.js";
import { type CriClient, isCut, isNotFound, isUnimplemented, runtimeMessage } from "./client.ts";
import { LABEL_BACKEND, LABEL_INSTANCE, LABEL_MACHINE } from "./labels.ts";
import { type LogLimits, rotateLog, settleLog } from "./logs.ts";
import type { TaskExit } from "./shims.ts";
import { commandStreams } from "./streams.ts";

interface RuntimeContainersOptions {
  client: CriClient;
  clock: Clock;
  logger: Logger;
  /** Value of the backend's label. */
  backend: string;
  logLimits: LogLimits;
  /** Starts the runtime again when it has ended, where that is ours to do. */
  revive?: ((signal: AbortSignal) => Promise<void>) | undefined;
  /** Knows how a container has ended, where the runtime may not know it any more. */
  exits?: ContainerExits | undefined;
}

/** Of a runtime that is ours. */
interface ContainerExits {
  /** Sees to it that the end of a container which runs will be known. */
  witness(runtimeId: string, signal: AbortSignal): Promise<void>;
  exitOf(runtimeId: string): Promise<TaskExit | undefined>;
  forgetExit(runtimeId: string): Promise<void>;
}

interface Watched {
  container: ContainerRef;
  runtimeId: string;
  events: ShimEvents;
  startedSeen: boolean;
  /** Undefined: none is under way. True: another look is wanted after this one. */
  looking: boolean | undefined;
  witnessed: boolean;
}

/** Between lists, with events and without (kubelet's relist periods of both kinds, and shorter). */
const RELIST_MS = { withEvents: 5_000, without: 1_000 };
const RECONNECT_MS = 200;
/** How often logs are measured: a container may fill a disk between two looks. */
const LOG_CHECK_MS = 1_000;
const QUICK_CALL_MS = 10_000;
/** What containerd says of a container that has ended while it did not run itself (internal/cri/server/helpers.go). */
const UNSEEN_EXIT = { exitCode: 255, reason: "Unknown" };
const NS_PER_MS = 1_000_000n;

export class RuntimeContainers implements Shims {
  readonly #options: RuntimeContainersOptions;
  /** By the container's id with us: its id in the runtime. */
  readonly #ids = new Map<string, string>();
  /** By the id in the runtime. */
  readonly #watched = new Map<string, Watched>();
  /** By the container's id with us: how its sessions are closed. */
  readonly #attached = new Map<string, Set<() => void>>();
  readonly #sandboxes = new Map<string, () => void>();
  /** By machine, and by the container's id with us: how those have ended whose sandbox is gone. */
  readonly #ends = new Map<string, ReadonlyMap<string, RecordedExit>>();
  readonly #closed = new AbortController();
  #hasEvents = false;
  #following = false;
  #cancelRelist: () => void = () => {};
  #cancelLogs: () => void = () => {};

  constructor(options: RuntimeContainersOptions) {
    this.#options = options;
  }

  /** Begins to follow what the runtime tells. */
  open(): void {
    if (this.#following) return;
    this.#following = true;
    void this.#follow();
    this.#relistLater();
    this.#checkLogsLater();
  }

  close(): void {
    this.#closed.abort(new Error("the backend is stopping"));
    this.#cancelRelist();
    this.#cancelLogs();
    this.#watched.clear();
    this.#sandboxes.clear();
  }

  // --- which is which ---

  made({ id }: Pick<ContainerRef, "id">, runtimeId: string): void {
    this.#ids.set(id, runtimeId);
  }

  forget({ id }: Pick<ContainerRef, "id">): void {
    const known = this.#ids.get(id);
    this.#ids.delete(id);
    if (known === undefined) return;
    this.#watched.delete(known);
    const { exits, logger } = this.#options;
    exits?.forgetExit(known).catch((thrown: unknown) => logger.debug({ err: thrown }, "Cannot forget an exit code"));
  }

  /** The id in the runtime; undefined when the runtime has no such container. */
  async find({ id }: Pick<ContainerRef, "id">): Promise<string | undefined> {
    const known = this.#ids.get(id);
    if (known !== undefined) return known;
    return (await this.#list({ [LABEL_INSTANCE]: id }))[0]?.id;
  }

  /**
   * Learns which containers of a machine the runtime has, after a restart of the backend.
   * @returns whether one of them has begun
   */
  async learn(machine: string): Promise<boolean> {
    const containers = await this.#list({ [LABEL_MACHINE]: machine });
    for (const { id, labels } of containers) this.#ids.set(labels[LABEL_INSTANCE]!, id);
    return containers.some(({ state }) => state !== ContainerState.CONTAINER_CREATED);
  }

  /**
   * Learns what the runtime has written down of the ends of a machine's containers. Nobody else knows when its sandbox
   * has gone while there was no backend; of what ended with the host there is nothing.
   */
  async learnEnds(machine: string): Promise<void> {
    const ends = new Map<string, RecordedExit>();
    for (const { id, labels, state } of await this.#list({ [LABEL_MACHINE]: machine })) {
      const status = state === ContainerState.CONTAINER_EXITED ? await this.status(id) : undefined;
      if (status === undefined || status.startedAt === 0n) continue;
      const { lost, ...exit } = await this.#ending(status);
      if (!lost) ends.set(labels[LABEL_INSTANCE]!, { ...exit, startedAt: toMs(status.startedAt) });
    }
    this.#ends.set(machine, ends);
  }

  forgetEnds(machine: string): void {
    this.#ends.delete(machine);
  }

  recorded({ id }: ContainerRef): RecordedExit | undefined {
    for (const ends of this.#ends.values()) if (ends.has(id)) return ends.get(id);
    return undefined;
  }

  /** Undefined when the runtime has no such container. */
  async status(runtimeId: string): Promise<ContainerStatus | undefined> {
    const { client } = this.#options;
    try {
      const { status } = await client.runtime.containerStatus({ containerId: runtimeId }, client.within(QUICK_CALL_MS));
      return status;
    } catch (thrown) {
      if (isNotFound(thrown)) return undefined;
      throw thrown;
    }
  }

  async #list(labels: Record<string, string>): Promise<readonly Container[]> {
    const { client } = this.#options;
    const filter = { labelSelector: { ...this.#ours, ...labels } };
    return (await client.runtime.listContainers({ filter }, client.within(QUICK_CALL_MS))).containers;
  }

  get #ours(): Record<string, string> {
    return { [LABEL_BACKEND]: this.#options.backend };
  }

  // --- what shims do elsewhere ---

  async start({ id }: ContainerRef, command: StartCommand): Promise<void> {
    if (!("runtimeId" in command)) throw new Error("the container was not made by the runtime");
    const { client } = this.#options;
    try {
      await client.lasting.startContainer({ containerId: command.runtimeId }, client.within());
    } catch (thrown) {
      // What became of it is seen when the runtime is back; if nothing, it is asked for the start again.
      if (!isCut(thrown)) throw new Error(runtimeMessage(thrown), { cause: thrown });
    }
    this.#ids.set(id, command.runtimeId);
  }

  watch(container: ContainerRef, _socket: string, events: ShimEvents): ShimWatch {
    const runtimeId = this.#ids.get(container.id) ?? "";
    const watched: Watched = { container, runtimeId, events, startedSeen: false, looking: undefined, witnessed: false };
    this.#watched.set(runtimeId, watched);
    this.#look(watched);
    return {
      close: () => {
        if (this.#watched.get(runtimeId) === watched) this.#watched.delete(runtimeId);
      },
    };
  }

  /**
   * One that is only created counts: the former backend has written down that it begins it, and its call may still be
   * under way. It is never made again, its start is asked for again: the runtime starts a container once.
   */
  everStarted({ id }: ContainerRef): boolean {
    return this.#ids.has(id);
  }

  async attach(container: ContainerRef, _socket: string, options: StreamOptions): Promise<ProcessStreams> {
    const { client, clock } = this.#options;
    const { stdin, stdout, stderr, tty } = options;
    const containerId = await this.find(container);
    if (containerId === undefined) throw new ProviderError("conflict", "the container is not running");
    const asked = { containerId, stdin, stdout, stderr: stderr && !tty, tty };
    const { url } = await client.runtime.attach(asked, client.within(QUICK_CALL_MS, options.signal));
    let isOver = false;
    const ended = () => this.#attachedEnd(containerId, () => isOver, options.signal);
    const streams = await commandStreams(url, options, { clock, ended });
    streams.stdin?.once("finish", () => (isOver = true));
    const sessions = this.#attached.get(container.id) ?? new Set();
    this.#attached.set(container.id, sessions.add(streams.close));
    const forget = () => {
      sessions.delete(streams.close);
      if (sessions.size === 0) this.#attached.delete(container.id);
    };
    // The runtime says "Success" to the end of a session, whatever became of the container.
    const exit = streams.exit.finally(forget).then(() => ended());
    exit.catch(() => {});
    return { ...streams, exit };
  }

  /** Ends sessions that are attached: one that takes no output holds up the container's end. */
  detachAll({ id }: ContainerRef): void {
    for (const close of this.#attached.get(id) ?? []) close();
  }

  /**
   * How the container ended that a session was attached to.
   * @param isOver the session's own input: the runtime ends it with that, and the container may run on
   * @throws ProviderError unavailable when it runs on all the same
   */
  async #attachedEnd(containerId: string, isOver: () => boolean, signal: AbortSignal): Promise<{ exitCode: number }> {
    const { clock } = this.#options;
    for (let round = 0; ; round++) {
      const status = await this.status(containerId);
      if (status?.state === ContainerState.CONTAINER_EXITED) {
        const { exitCode, lost } = await this.#ending(status);
        if (lost) throw new ProviderError("unavailable", "the runtime has not seen how the container ended");
        return { exitCode };
      }
      // Its streams end a moment before it is known to have ended.
      if (round === 10 && isOver()) return { exitCode: 0 };
      if (round === 10 || signal.aborted)
        throw new ProviderError("unavailable", "the attach session ended before the container did");
      await clock.sleep(20);
    }
  }

  /** Calls `changed` whenever something may have become of the sandbox, until the returned function is called. */
  watchSandbox(sandboxId: string, changed: () => void): () => void {
    this.#sandboxes.set(sandboxId, changed);
    return () => void this.#sandboxes.delete(sandboxId);
  }

  // --- what the runtime tells ---

  async #follow(): Promise<void> {
    const { client, clock, logger } = this.#options;
    const { signal } = this.#closed;
    while (!signal.aborted) {
      try {
        for await (const { containerId } of client.runtime.getContainerEvents({}, client.endless(signal))) {
          this.#hasEvents = true;
          const watched = this.#watched.get(containerId);
          if (watched !== undefined) this.#look(watched);
          this.#sandboxes.get(containerId)?.();
        }
      } catch (thrown) {
        if (signal.aborted) return;
        this.#hasEvents = false;
        if (isUnimplemented(thrown)) return;
        logger.debug({ err: thrown }, "The runtime's events have ended");
      }
      await this.#revive();
      // A runtime that was killed has told nothing since.
      await this.#relist();
      await clock.sleep(RECONNECT_MS);
    }
  }

  async #revive(): Promise<void> {
    const { revive, logger } = this.#options;
    try {
      await revive?.(this.#closed.signal);
    } catch (thrown) {
      if (!this.#closed.signal.aborted) logger.error({ err: thrown }, "Cannot start the runtime again yet");
    }
  }

  #relistLater(): void {
    const ms = this.#hasEvents ? RELIST_MS.withEvents : RELIST_MS.without;
    this.#cancelRelist = this.#options.clock.after(ms, () => {
      void this.#relist().then(() => {
        if (!this.#closed.signal.aborted) this.#relistLater();
      });
    });
  }

  /** Looks at whatever does not run as it should. Never rejects: what cannot be seen is looked at later. */
  async #relist(): Promise<void> {
    const { client, logger } = this.#options;
    if (this.#watched.size === 0 && this.#sandboxes.size === 0) return;
    try {
      const filter = { labelSelector: this.#ours };
      const within = client.within(QUICK_CALL_MS);
      const watched = [...this.#watched];
      const sandboxes = [...this.#sandboxes];
      const { containers } = await client.runtime.listContainers({ filter }, within);
      const running = new Set(
        containers.filter(({ state }) => state === ContainerState.CONTAINER_RUNNING).map(({ id }) => id),
      );
      for (const [id, each] of watched) if (!running.has(id) || !each.startedSeen) this.#look(each);
      const { items } = await client.runtime.listPodSandbox({ filter }, within);
      const ready = new Set(items.filter(({ state }) => state === PodSandboxState.SANDBOX_READY).map(({ id }) => id));
      for (const [id, changed] of sandboxes) if (!ready.has(id)) changed();
    } catch (thrown) {
      if (!this.#closed.signal.aborted) logger.debug({ err: thrown }, "The runtime cannot be asked just now");
    }
  }

  #look(watched: Watched): void {
    if (watched.looking !== undefined) {
      watched.looking = true;
      return;
    }
    watched.looking = false;
    void this.#lookNow(watched).finally(() => {
      const again = watched.looking === true;
      watched.looking = undefined;
      if (again) this.#look(watched);
    });
  }

  async #lookNow(watched: Watched): Promise<void> {
    const { runtimeId, events, container } = watched;
    const { logger } = this.#options;
    const isWatched = () => this.#watched.get(runtimeId) === watched && !this.#closed.signal.aborted;
    let status: ContainerStatus | undefined;
    try {
      status = await this.status(runtimeId);
    } catch (thrown) {
      // Nothing is known: the next list asks again.
      logger.debug({ err: thrown, container: container.id }, "The runtime cannot be asked about a container just now");
      return;
    }
    if (!isWatched()) return;
    const startedAt = status === undefined || status.startedAt === 0n ? undefined : toMs(status.startedAt);
    if (!watched.startedSeen && startedAt !== undefined) {
      watched.startedSeen = true;
      events.started({ startedAt, user: userOf(status) });
    }
    const end = await this.#endOf(watched, status);
    if (end === undefined || !isWatched()) return;
    this.#watched.delete(runtimeId);
    events.exited(end);
    await settleLog(container.dir, this.#options.logLimits).catch((thrown: unknown) =>
      logger.warn({ err: thrown, container: container.id }, "Cannot hold a log to its limits"),
    );
    events.gone();
  }

  /** Undefined while it runs, or is to be started. */
  async #endOf(
    watched: Watched,
    status: ContainerStatus | undefined,
  ): Promise<Parameters<ShimEvents["exited"]>[0] | undefined> {
    const { clock, exits } = this.#options;
    if (status === undefined) return { exitCode: KILLED_EXIT, lost: true, finishedAt: clock.now() };
    switch (status.state) {
      case ContainerState.CONTAINER_RUNNING:
        this.#witness(watched);
        return undefined;
      case ContainerState.CONTAINER_CREATED: {
        // A runtime that was killed may not know that it has started it: it has run, and must not run again.
        const unseen = await exits?.exitOf(watched.runtimeId);
        if (unseen !== undefined) return { ...unseen, startedAt: unseen.finishedAt };
        await this.#startAgain(watched);
        return undefined;
      }
      case ContainerState.CONTAINER_EXITED: {
        if (status.startedAt !== 0n) return { ...(await this.#ending(status)), startedAt: toMs(status.startedAt) };
        const startError = status.message || status.reason || "the container did not start";
        const finishedAt = status.finishedAt === 0n ? clock.now() : toMs(status.finishedAt);
        return { exitCode: status.exitCode, startError, finishedAt };
      }
      case ContainerState.CONTAINER_UNKNOWN:
        return undefined;
    }
  }

  #witness(watched: Watched): void {
    const { exits, logger } = this.#options;
    if (watched.witnessed || exits === undefined) return;
    watched.witnessed = true;
    exits.witness(watched.runtimeId, this.#closed.signal).catch((thrown: unknown) => {
      logger.debug({ err: thrown, container: watched.container.id }, "Cannot write down how a container has ended");
    });
  }

  /** Asks for a start of which the runtime may know already: then it refuses, and nothing is done twice. */
  async #startAgain(watched: Watched): Promise<void> {
    const { client, logger } = this.#options;
    const { container, runtimeId } = watched;
    try {
      await client.lasting.startContainer({ containerId: runtimeId }, client.within());
    } catch (thrown) {
      logger.debug({ err: thrown, container: container.id }, "The runtime does not start the container now");
    }
    // What became of it. While another call starts it, the next list tells.
    if (watched.looking !== false) return;
    const status = await this.status(runtimeId).catch(() => undefined);
    watched.looking = status !== undefined && status.state !== ContainerState.CONTAINER_CREATED;
  }

  /** How a container has ended that had started. */
  async #ending({ id, exitCode, reason, finishedAt }: ContainerStatus): Promise<TaskExit & { lost?: true }> {
    const { clock, exits } = this.#options;
    const seen = { exitCode, finishedAt: finishedAt === 0n ? clock.now() : toMs(finishedAt) };
    if (exitCode !== UNSEEN_EXIT.exitCode || reason !== UNSEEN_EXIT.reason) return seen;
    // As a kubelet (ContainerStatusUnknown): it certainly does not run any more.
    return (await exits?.exitOf(id)) ?? { ...seen, exitCode: KILLED_EXIT, lost: true };
  }

  // --- logs ---

  #checkLogsLater(): void {
    this.#cancelLogs = this.#options.clock.after(LOG_CHECK_MS, () => {
      void this.#checkLogs().then(() => {
        if (!this.#closed.signal.aborted) this.#checkLogsLater();
      });
    });
  }

  async #checkLogs(): Promise<void> {
    const { client, logLimits, logger } = this.#options;
    for (const { container, runtimeId, startedSeen } of [...this.#watched.values()]) {
      if (!startedSeen) continue;
      const reopen = async () => {
        await client.runtime.reopenContainerLog({ containerId: runtimeId }, client.within(QUICK_CALL_MS));
      };
      await rotateLog(container.dir, logLimits, reopen).catch((thrown: unknown) => {
        // One that has ended meanwhile is settled at its end.
        if (this.#watched.has(runtimeId)) logger.debug({ err: thrown, container: container.id }, "Cannot rotate a log");
      });
    }
  }
}

/** containerd 2.0 and newer tell. */
function userOf(status: ContainerStatus | undefined) {
  const user = status?.user?.linux;
  if (user === undefined) return undefined;
  const { uid, gid, supplementalGroups } = user;
  return { uid: Number(uid), gid: Number(gid), supplemental_groups: supplementalGroups.map(Number) };
}

function toMs(ns: bigint): number {
  return Number(ns / NS_PER_MS);
}
