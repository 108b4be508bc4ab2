/**
 * Keeps the sandbox of one machine: makes it, finds a former backend's again, notices when it is lost or its containers
 * use more of the disk than they may, and removes it for sure.
 */
import { rmSync } from "node:fs";
import {
  doubledMs,
  isProviderError,
  pause,
  ProviderError,
  toError,
  untilAborted,
  type Volume,
} from "../../../src/provider/kit/index.ts";
import { DevicesRefused } from "../devices.ts";
import type { ContainerRef, Sandbox, SandboxHealth, SandboxLoss } from "../engine.ts";
import { logBytes } from "../shim/log-reader.ts";
import { ANSWER_MS, answered, limitedSandbox, unanswered } from "./engine-deadlines.ts";
import type { MachineContext } from "./machine-context.ts";
import type { CsiGrowth } from "../csi-volumes.ts";
import { PluginWork, repeated } from "./plugin-work.ts";
import type { FilesVolume } from "./spec-changes.ts";
import { charged, exceededLimit, hasStorageLimits, type StorageUse } from "./storage-limits.ts";

const RETRY_MS = { first: 1_000, max: 30_000 };
/** Between two attempts, while a network or a runtime that has to take part is away: of all machines at once. */
const DESTROY_MAX_MS = 10_000;
/** From the word that a sandbox is not wanted any more to the end of the wait for an engine that still makes it. */
const GIVE_UP_MS = 10_000;
/** kubelet's eviction manager looks this often. */
const STORAGE_CHECK_MS = 10_000;

interface SandboxEvents {
  /** It is being made from here on. */
  onOpening(): void;
  /** It is gone, and the containers in it. @throws when how they ended cannot be known yet: it is to be told again */
  onLost(loss: SandboxLoss): void;
  /** The system in it answers no more, or again. */
  onHealth(health: SandboxHealth): void;
  /** The engine says that this machine can never be made. */
  onInvalid(error: Error): void;
  /** It cannot have the devices that it asks for. */
  onRefused(error: DevicesRefused): void;
  /** The machine uses more of the disk than it may, as `message` says. */
  onOverLimit(message: string): void;
}

export class SandboxKeeper {
  readonly #context: MachineContext;
  readonly #events: SandboxEvents;
  readonly #plugins: PluginWork;
  /** The containers that run. */
  readonly #running: () => ContainerRef[];
  #sandbox: Sandbox | undefined;
  #opening: AbortController | undefined;
  /** Aborts when what is being opened is not wanted any more: `#opening` may have been aborted before. */
  #unwanted = new AbortController();
  /** On the monotonic clock, in milliseconds. */
  #retry = { at: 0, failures: 0 };
  #cancelStorage: (() => void) | undefined;
  /** Volumes of it could not be had when its sandbox was found again. */
  #lacksVolumes = false;

  constructor(context: MachineContext, running: () => ContainerRef[], events: SandboxEvents) {
    this.#context = context;
    this.#running = running;
    this.#events = events;
    this.#plugins = new PluginWork(context);
  }

  /** Undefined while there is none: not made yet, lost, or destroyed. */
  get sandbox(): Sandbox | undefined {
    return this.#sandbox;
  }

  get isOpening(): boolean {
    return this.#opening !== undefined;
  }

  /** How long the next try to open it has to wait, in milliseconds; not above 0 when it need not. */
  get retryInMs(): number {
    return this.#retry.at - this.#context.clock.monotonic();
  }

  /** One of a CSI driver that the machine has. @throws ProviderError as PluginWork has it */
  async growVolume(growth: CsiGrowth, signal: AbortSignal): Promise<void> {
    await this.#plugins.grow(growth, signal);
  }

  // --- open ---

  /** Makes the sandbox. A failure is shown, and tried again by a later plan. Never rejects for what an engine does. */
  async open(): Promise<void> {
    const { starts, tenant, state, work, trace, clock } = this.#context;
    const opening = new AbortController();
    this.#opening = opening;
    this.#unwanted = new AbortController();
    let cancel = () => {};
    try {
      await this.#plugins.prepare(opening.signal);
      const open = async () => {
        opening.signal.throwIfAborted();
        state.beginOpening();
        this.#events.onOpening();
        cancel = clock.after(ANSWER_MS.open, () => opening.abort(unanswered("open")));
        await trace.step("sandbox.open", {}, () => work.inEngine(this.#open(opening.signal)));
      };
      await starts.run(tenant, open, opening.signal);
      this.#retry = { at: 0, failures: 0 };
    } catch (thrown) {
      await this.#openFailed(toError(thrown));
    } finally {
      cancel();
      this.#opening = undefined;
      this.#context.replan();
    }
  }

  async #open(signal: AbortSignal): Promise<void> {
    const { state, work, clock } = this.#context;
    const sandbox = limitedSandbox(await this.#opened(signal), clock);
    try {
      // A patch may replace files meanwhile; then it is done here that they are put in place.
      const applied = new Set<Volume>();
      for (;;) {
        const volume = state.filesVolumes.find((each) => !applied.has(each));
        if (volume === undefined) break;
        applied.add(volume);
        await this.applyFiles(sandbox, volume);
      }
      // A sandbox that was opened while the backend ends is cleared away by the next one.
      work.closing.throwIfAborted();
    } catch (thrown) {
      await sandbox.close().catch(() => {});
      throw thrown;
    }
    state.showOpen(sandbox.addresses);
    this.#adopt(sandbox);
  }

  /** Not longer than an engine needs that heeds the signal: no other must keep the machine from its end. */
  async #opened(signal: AbortSignal): Promise<Sandbox> {
    const { engine, home, state, volumes, work, clock } = this.#context;
    const open = async () => {
      await volumes?.attach(state, { signal });
      return await engine.open(home, signal);
    };
    const opened = open();
    let isSettled = false;
    const settle = () => void (isSettled = true);
    const settled = opened.then(settle, settle);
    await untilAborted(signal, settled);
    // Another must not be made while this one may still come to be: only the machine's end does not wait for that.
    await untilAborted(this.#unwanted.signal, settled);
    if (!isSettled) await Promise.race([settled, pause(clock, GIVE_UP_MS, work.closing)]);
    if (isSettled || state.record.ending === undefined) return await opened;
    work.background(this.#removeLate(opened));
    throw toError(signal.reason);
  }

  /** The machine may be deleted by then; what cannot be removed now, the next backend sweeps. */
  async #removeLate(opened: Promise<Sandbox>): Promise<void> {
    const { engine, home, state, volumes } = this.#context;
    const late = await opened.catch(() => undefined);
    await late?.close().catch(() => {});
    await engine.destroy(home, { keepVolumes: false });
    await volumes?.detach(state);
  }

  async #openFailed(error: Error): Promise<void> {
    const { state, logger } = this.#context;
    if (error instanceof DevicesRefused && state.record.ending === undefined) return this.#events.onRefused(error);
    const wait = this.#plugins.waitsFor(error);
    if (wait !== undefined && state.record.ending === undefined) return this.#pluginsNotReady(wait);
    if (!(await this.destroy({ keepVolumes: true })) || state.record.ending !== undefined) return;
    logger.warn({ err: error }, "Cannot make the machine's sandbox");
    const message = `Failed to create pod sandbox: ${error.message}`;
    state.notice("Warning", "FailedCreatePodSandBox", message);
    if (isProviderError(error, "invalid") || isProviderError(error, "unsupported"))
      return this.#events.onInvalid(error);
    this.#retryLater();
    state.showMessage(message);
  }

  /** Nothing was made: a pod waits for its claims and its volumes as a kubelet's does. */
  #pluginsNotReady({ reason, message }: { reason: string; message: string }): void {
    const { state, logger } = this.#context;
    logger.info({ why: message }, "A machine waits for plugins of the host");
    state.notice("Warning", reason, message);
    this.#retryLater();
    state.showMessage(message);
  }

  #retryLater(): void {
    const { failures } = this.#retry;
    const at = this.#context.clock.monotonic() + doubledMs(RETRY_MS, failures);
    this.#retry = { at, failures: failures + 1 };
  }

  /** The sandbox is not wanted any more: what is being opened is given up. */
  abandon(reason: unknown): void {
    this.#opening?.abort(reason);
    this.#unwanted.abort(reason);
  }

  /** Puts a volume's files in place. @throws ProviderError unsupported, or what the engine throws */
  async applyFiles(sandbox: Sandbox, volume: FilesVolume): Promise<void> {
    const { engine, state } = this.#context;
    if (sandbox.applyFiles === undefined)
      throw new ProviderError("unsupported", `engine ${engine.name} has no file volumes`, { field: "volumes" });
    await sandbox.applyFiles(volume);
    state.showFiles(volume);
  }

  // --- after a restart of the backend ---

  /**
   * Finds the sandbox of a former backend again, or shows that it is lost. False when this backend ends meanwhile.
   * @throws what the engine throws: called again, it tries again
   */
  async recover(): Promise<boolean> {
    const { state, work, clock } = this.#context;
    if (this.#sandbox !== undefined || state.record.sandbox === "none") return true;
    if (state.record.sandbox === "opening") {
      // The former backend ended while it made the sandbox: that begins again.
      if (!work.isClosing) await work.inEngine(this.#destroy({ keepVolumes: true }));
      return !work.isClosing;
    }
    const { engine, home } = this.#context;
    const found = await work.inEngine(answered(clock, "recover", engine.recover(home)));
    const sandbox = found && limitedSandbox(found, clock);
    if (sandbox !== undefined) await this.#findVolumes();
    if (work.isClosing) {
      await sandbox?.close();
      return false;
    }
    if (sandbox !== undefined) this.#adopt(sandbox);
    else this.#lose({ reason: "SandboxLost", message: "the machine's sandbox was gone when the backend started" });
    return true;
  }

  /** What runs can be watched, stopped and deleted whatever becomes of this: on a full disk, say. */
  async #findVolumes(): Promise<void> {
    this.#lacksVolumes = this.#context.volumes !== undefined;
    try {
      await this.haveVolumes();
    } catch (thrown) {
      this.#context.logger.error({ err: thrown }, "Cannot have the machine's volumes again: no container begins");
    }
  }

  /** Its volumes are where its next containers look for them. @throws Error when that is not so yet */
  async haveVolumes(): Promise<void> {
    const { state, volumes, work, clock } = this.#context;
    if (!this.#lacksVolumes) return;
    const attached = volumes?.attach(state, { signal: work.closing, isRunning: true });
    await work.inEngine(answered(clock, "recover", Promise.resolve(attached)));
    this.#lacksVolumes = false;
  }

  #adopt(sandbox: Sandbox): void {
    this.#sandbox = sandbox;
    this.#watchStorage();
    sandbox.onHealth?.((health) => {
      if (this.#sandbox === sandbox && !this.#context.work.isClosing) this.#events.onHealth(health);
    });
    void sandbox.lost.then((loss) => {
      this.#context.work.background(this.#loseForSure(sandbox, loss));
    });
  }

  async #loseForSure(sandbox: Sandbox, loss: SandboxLoss): Promise<void> {
    const { work, clock, logger } = this.#context;
    while (this.#sandbox === sandbox && !work.isClosing) {
      try {
        this.#lose(loss);
        return;
      } catch (thrown) {
        logger.warn({ err: thrown }, "Cannot find out yet how the containers of a lost sandbox ended");
        await pause(clock, RETRY_MS.first, work.closing);
      }
    }
  }

  /** @throws as `onLost` */
  #lose(loss: SandboxLoss): void {
    const sandbox = this.#sandbox;
    this.#events.onLost(loss);
    this.#context.logger.warn(loss, "The machine's sandbox is lost");
    this.#sandbox = undefined;
    void sandbox?.close().catch(() => {});
  }

  /**
   * Its containers do not end by what can be done to each of them: the sandbox is given up with all in it, and is to be
   * destroyed. Nothing happens when there is none.
   * @throws as `onLost`
   */
  giveUp(loss: SandboxLoss): void {
    if (this.#sandbox !== undefined) this.#lose(loss);
  }

  // --- end ---

  /**
   * Removes all that the engine has of the machine, and with its volumes, what plugins have for it. Repeats until they
   * confirm; false when the backend ends before that.
   */
  async destroy(options: { keepVolumes: boolean }): Promise<boolean> {
    const { work, trace } = this.#context;
    const destroy = () => trace.step("sandbox.destroy", {}, () => work.inEngine(this.#destroy(options)));
    const how = { fault: "Cannot remove the machine's sandbox yet", maxMs: DESTROY_MAX_MS };
    if (!(await repeated(this.#context, destroy, how))) return false;
    return options.keepVolumes || (await this.#plugins.giveBack());
  }

  async #destroy(options: { keepVolumes: boolean }): Promise<void> {
    const { engine, home, state, volumes, clock } = this.#context;
    const sandbox = this.#sandbox;
    this.#sandbox = undefined;
    this.#lacksVolumes = false;
    const destroy = async () => {
      await sandbox?.close().catch(() => {});
      await engine.destroy(home, options);
      await volumes?.detach(state);
    };
    await answered(clock, "destroy", destroy());
    // Those of a next sandbox are made again.
    if (home.secretDir !== home.dir) rmSync(home.secretDir, { recursive: true, force: true });
    state.sandboxDestroyed();
  }

  /** The backend ends: the sandbox lives on. Call `close` afterwards, when no call of the engine is open. */
  release(reason: unknown): void {
    this.abandon(reason);
    this.#cancelStorage?.();
  }

  async close(): Promise<void> {
    await this.#sandbox?.close();
  }

  // --- local storage limits (pkg/kubelet/eviction) ---

  /** Measures now and then, while there is a limit and an engine that can. */
  #watchStorage(): void {
    const { engine, state, clock, work } = this.#context;
    if (!hasStorageLimits(state.spec, engine.capabilities)) return;
    this.#cancelStorage?.();
    this.#cancelStorage = clock.after(STORAGE_CHECK_MS, () => work.background(this.#checkStorage()));
  }

  async #checkStorage(): Promise<void> {
    const { state, work } = this.#context;
    const sandbox = this.#sandbox;
    if (sandbox === undefined || work.isClosing || state.record.ending !== undefined) return;
    const message = exceededLimit(state.spec, await this.#storageUse(sandbox));
    if (message === undefined || state.record.ending !== undefined) this.#watchStorage();
    else this.#events.onOverLimit(message);
  }

  async #storageUse(sandbox: Sandbox): Promise<StorageUse> {
    const running = this.#running();
    const { volumes = [], containers } = await sandbox.stats(running).catch(() => ({ volumes: [], containers: [] }));
    const inodes = await sandbox.inodes?.(running).catch(() => undefined);
    const layers = new Map(
      containers.map(({ name, fs_used_bytes = 0 }) => [
        name,
        charged(fs_used_bytes, inodes?.containers.get(name) ?? 0),
      ]),
    );
    const used = running.map(
      async ({ name, dir }) => [name, (layers.get(name) ?? 0) + (await logBytes(dir).catch(() => 0))] as const,
    );
    return {
      volumes: new Map(
        volumes.map(({ name, used_bytes }) => [name, charged(used_bytes, inodes?.volumes.get(name) ?? 0)]),
      ),
      containers: new Map(await Promise.all(used)),
    };
  }
}
