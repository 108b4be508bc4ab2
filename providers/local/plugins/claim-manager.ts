/**
 * Has the plugins of Dynamic Resource Allocation's drivers make claims ready for machines, and take them back: as a
 * kubelet's DRA manager (pkg/kubelet/cm/dra), whose words the refusals have.
 *
 * A machine's record says that a driver is about to be asked before it is, so whatever is killed, the claim is taken
 * back at the machine's end. A claim that several machines have is taken back with the last of them; what is done with
 * one claim is done in turn, or the last one's end would take it from a new one.
 */
import { type Clock, type Logger, pause, toError } from "../../../src/provider/kit/index.ts";
import {
  askedClaims,
  type ClaimHolder,
  type ClaimSource,
  ClaimsNotReady,
  type PreparedClaim,
  type PreparedClaims,
} from "../claims.ts";
import { ClaimHealth } from "./claim-health.ts";
import type { ClaimName, DraPlugin, DraServices } from "./dra-plugin.ts";
import { judgePrepared } from "./judge.ts";

interface ClaimManagerOptions {
  clock: Clock;
  logger: Logger;
  /** Machines that are not over, with what they have. */
  holders: () => Iterable<Pick<ClaimHolder, "id" | "prepared">>;
  connect: (socket: string, services: DraServices) => DraPlugin;
  /** What is known of the health of devices may have changed. */
  onHealth?: () => void;
}

/** Drivers of this host, and plugins of one driver (an old one and its successor). */
const MAX_DRIVERS = 64;
const MAX_PLUGINS = 8;
/** Twice as long as an agent takes from one look to the next. */
const TOLD_MS = 20_000;
/** After the end of a plugin's reports. */
const REPORT_RETRY_MS = 5_000;
/** A kubelet hears of it at once; nothing is done about it for half a minute, either. */
const LOOK_EVERY_MS = 5_000;

interface Registered {
  socket: string;
  api: DraPlugin;
  /** One that was killed leaves its socket, by which it is registered still. */
  isThere: boolean;
}

export class ClaimManager implements ClaimSource {
  readonly #options: ClaimManagerOptions;
  /** On the monotonic clock; what is older than TOLD_MS goes with the next look. */
  readonly #registeredAt = new Map<string, number>();
  /** By driver, the newest last. */
  readonly #drivers = new Map<string, Registered[]>();
  /** By claim, what is being done with it. */
  readonly #turns = new Map<string, Promise<unknown>>();
  readonly #health: ClaimHealth;
  readonly #closing = new AbortController();

  constructor(options: ClaimManagerOptions) {
    this.#options = options;
    this.#health = new ClaimHealth(options.clock);
  }

  readonly health: ClaimSource["health"] = (...device) => this.#health.of(...device);

  // --- plugins ---

  /** Those of which a plugin is registered, and there. */
  drivers(): string[] {
    return [...this.#drivers].flatMap(([driver, plugins]) => (plugins.some(({ isThere }) => isThere) ? [driver] : []));
  }

  /**
   * The same and, for a while after they have registered, those that have gone since: an agent looks now and then, and
   * removes the ResourceSlices of what it has seen and sees no more.
   */
  toldDrivers(): string[] {
    const now = this.#options.clock.monotonic();
    for (const [driver, at] of this.#registeredAt) if (now - at >= TOLD_MS) this.#registeredAt.delete(driver);
    return [...new Set([...this.drivers(), ...this.#registeredAt.keys()])];
  }

  /**
   * Takes the plugin at a socket as one of this driver's.
   * @param services by which it is spoken with
   * @returns has it not asked any more
   * @throws Error that tells the plugin why it is not taken
   */
  register(driver: string, socket: string, services: DraServices): () => void {
    const known = this.#drivers.get(driver) ?? [];
    if (known.length === 0 && this.#drivers.size >= MAX_DRIVERS)
      throw new Error(`there are ${MAX_DRIVERS} DRA drivers already`);
    if (known.some((each) => each.socket === socket))
      throw new Error(`endpoint ${socket} already registered for DRA driver plugin ${driver}`);
    const registered: Registered = { socket, api: this.#options.connect(socket, services), isThere: true };
    // One that was killed has left its socket, and so would stay here: the oldest make room.
    for (const { api } of known.slice(0, 1 - MAX_PLUGINS)) api.close();
    this.#drivers.set(driver, [...known.slice(1 - MAX_PLUGINS), registered]);
    if (this.#registeredAt.size < MAX_DRIVERS) this.#registeredAt.set(driver, this.#options.clock.monotonic());
    this.#options.logger.info({ driver, socket }, "A DRA driver's plugin has registered");
    if (services.health !== undefined) void this.#listen(driver, registered);
    void this.#lookAfter(driver, registered);
    return () => this.#unregister(driver, registered);
  }

  #unregister(driver: string, registered: Registered): void {
    registered.api.close();
    const others = (this.#drivers.get(driver) ?? []).filter((each) => each !== registered);
    if (others.length > 0) this.#drivers.set(driver, others);
    else {
      this.#drivers.delete(driver);
      this.#health.forget(driver);
      this.#options.onHealth?.();
    }
    this.#options.logger.info({ driver, socket: registered.socket }, "A DRA driver's plugin has gone");
  }

  /** kubelet: dra/plugin/dra_plugin_manager.go, monitoredPlugin. */
  async #lookAfter(driver: string, registered: Registered): Promise<void> {
    const { clock, logger } = this.#options;
    const { socket, api } = registered;
    for (;;) {
      await pause(clock, LOOK_EVERY_MS, this.#closing.signal);
      if (!this.#isKnown(driver, registered)) return;
      const isThere = await api.isThere();
      if (isThere === registered.isThere || !this.#isKnown(driver, registered)) continue;
      registered.isThere = isThere;
      if (isThere) logger.info({ driver, socket }, "A DRA driver's plugin answers again");
      else logger.warn({ driver, socket }, "A DRA driver's plugin does not answer any more");
    }
  }

  #isKnown(driver: string, registered: Registered): boolean {
    return !this.#closing.signal.aborted && (this.#drivers.get(driver) ?? []).includes(registered);
  }

  /** Has its reports for as long as it is the driver's. */
  async #listen(driver: string, registered: Registered): Promise<void> {
    const { clock, logger } = this.#options;
    const isKnown = () => this.#isKnown(driver, registered);
    while (isKnown()) {
      try {
        await registered.api.watchHealth((report) => {
          if (!isKnown()) return;
          this.#health.take(driver, report);
          this.#options.onHealth?.();
        });
      } catch (thrown) {
        if (isKnown()) logger.warn({ driver, err: thrown }, "A DRA driver's reports of its devices have ended");
      }
      await pause(clock, REPORT_RETRY_MS, this.#closing.signal);
    }
  }

  close(): void {
    this.#closing.abort(new Error("the backend is stopping"));
    for (const plugins of this.#drivers.values()) for (const { api } of plugins) api.close();
  }

  // --- claims ---

  async prepare(holder: ClaimHolder, signal: AbortSignal): Promise<void> {
    const asked = askedClaims(holder.spec);
    if (Object.keys(asked).length === 0) return;
    try {
      // As a kubelet, before anything is written: who never asked a driver need not wait for it at its end.
      for (const [uid, { claim, namespace, drivers }] of Object.entries(asked)) {
        for (const driver of Object.keys(drivers)) this.#plugin(driver);
        const old = this.#others(holder).find(
          (each) => each.uid !== uid && each.claim === claim && each.namespace === namespace,
        );
        if (old !== undefined)
          throw new Error(
            `old ResourceClaim with same name ${claim} and different UID ${old.uid} still exists (previous pod force-deleted?!)`,
          );
      }
      holder.keep(asked);
      const ready: [string, PreparedClaim][] = [];
      for (const [uid, claim] of Object.entries(asked))
        ready.push([uid, await this.#inTurn(uid, () => this.#prepareOne(uid, claim, signal))]);
      signal.throwIfAborted();
      holder.keep(Object.fromEntries(ready));
    } catch (thrown) {
      signal.throwIfAborted();
      throw new ClaimsNotReady(`prepare dynamic resources: ${toError(thrown).message}`, { cause: thrown });
    }
  }

  async #prepareOne(uid: string, asked: PreparedClaim, signal: AbortSignal): Promise<PreparedClaim> {
    signal.throwIfAborted();
    const drivers: PreparedClaim["drivers"] = {};
    for (const driver of Object.keys(asked.drivers)) {
      const answers = await this.#plugin(driver)
        .prepare([nameOf(uid, asked)], signal)
        .catch((thrown: unknown) => {
          throw new Error(`NodePrepareResources: ${toError(thrown).message}`, { cause: thrown });
        });
      const answer = answers[uid];
      if (answer === undefined) throw new Error("NodePrepareResources skipped 1 ResourceClaims");
      if (answer.error !== "")
        throw new Error(`NodePrepareResources failed for ResourceClaim ${asked.claim}: ${answer.error}`);
      drivers[driver] = judgePrepared(answer);
    }
    return { ...asked, drivers };
  }

  async unprepare(holder: ClaimHolder, signal: AbortSignal): Promise<void> {
    for (const [uid, claim] of Object.entries(holder.prepared ?? {}))
      await this.#inTurn(uid, async () => {
        signal.throwIfAborted();
        if (!this.#others(holder).some((each) => each.uid === uid)) await this.#unprepareOne(uid, claim, signal);
        // Before anybody else's turn: of two that end together, the second one has to see that it is the last.
        const { [uid]: _gone, ...left } = holder.prepared ?? {};
        holder.keep(Object.keys(left).length > 0 ? left : undefined);
      });
  }

  async #unprepareOne(uid: string, claim: PreparedClaim, signal: AbortSignal): Promise<void> {
    for (const driver of Object.keys(claim.drivers)) {
      const answers = await this.#plugin(driver)
        .unprepare([nameOf(uid, claim)], signal)
        .catch((thrown: unknown) => {
          throw new Error(`NodeUnprepareResources: ${toError(thrown).message}`, { cause: thrown });
        });
      const answer = answers[uid];
      if (answer === undefined) throw new Error("NodeUnprepareResources skipped 1 ResourceClaims");
      if (answer.error !== "")
        throw new Error(`NodeUnprepareResources failed for ResourceClaim ${claim.claim}: ${answer.error}`);
    }
  }

  /** The newest one that is there, else the newest. @throws Error when the driver has none */
  #plugin(driver: string): DraPlugin {
    const plugins = this.#drivers.get(driver) ?? [];
    const newest = plugins.findLast(({ isThere }) => isThere) ?? plugins.at(-1);
    if (newest === undefined) throw new Error(`DRA driver ${driver} is not registered`);
    return newest.api;
  }

  /** What the other machines have. */
  #others({ id }: ClaimHolder): { uid: string; namespace: string; claim: string }[] {
    return [...this.#options.holders()]
      .filter((each) => each.id !== id)
      .flatMap(({ prepared = {} }: { prepared?: PreparedClaims | undefined }) =>
        Object.entries(prepared).map(([uid, { namespace, claim }]) => ({ uid, namespace, claim })),
      );
  }

  async #inTurn<T>(uid: string, work: () => Promise<T>): Promise<T> {
    const before = this.#turns.get(uid);
    const turn = Promise.resolve(before).then(work, work);
    this.#turns.set(uid, turn);
    try {
      return await turn;
    } finally {
      if (this.#turns.get(uid) === turn) this.#turns.delete(uid);
    }
  }
}

function nameOf(uid: string, { namespace, claim }: PreparedClaim): ClaimName {
  return { namespace, uid, name: claim };
}
