/**
 * Tells guests where the cluster's Services lead. The agent tells it once, of all machines of its node; each guest is
 * brought to that by what has changed since it was told last, before its machine begins and whenever it changes. Each
 * by itself, in places that namespaces share fairly: one that is silent holds up no other namespace's, and a table of
 * megabytes is not written for hundreds at a time.
 */
import {
  type CallOptions,
  type Clock,
  isProviderError,
  isSubset,
  LABEL_NAMESPACE,
  linkAbort,
  type Logger,
  pause,
  type Provider,
  Pulse,
  type Services,
  type ServicesProvider,
  type ServicesSpec,
  ServiceTable,
  SharedPlaces,
  ToldServices,
} from "../../src/provider/kit/index.ts";

interface GuestServicesOptions {
  readonly clock: Clock;
  readonly logger: Logger;
  /** Of the provider. */
  readonly signal: AbortSignal;
}

type Labels = Readonly<Record<string, string>>;

interface Kept {
  readonly guest: Provider;
  readonly labels: Labels;
  readonly stop: AbortController;
}

const RETRY_MS = 5_000;
/** Of one namespace that is alone; twice as many in all. */
const AT_ONCE = 16;

export class GuestServices implements ServicesProvider {
  readonly #options: GuestServicesOptions;
  readonly #table = new ServiceTable();
  #labels: Record<string, string> = {};
  /** By machine. */
  readonly #kept = new Map<string, Kept>();
  readonly #told = new WeakMap<Provider, ToldServices>();
  /** Their image is of a time when guests knew no Services. */
  readonly #deaf = new WeakSet<Provider>();
  readonly #underWay = new WeakMap<Provider, { revision: string | undefined; told: Promise<boolean> }>();
  readonly #places = new SharedPlaces(AT_ONCE);
  readonly #wake = new Pulse();
  /** How often the agent has said that nothing has changed: guests are asked whether that is so with them. */
  #asked = 0;

  constructor(options: GuestServicesOptions) {
    this.#options = options;
  }

  /** Guests are told afterwards. */
  // eslint-disable-next-line @typescript-eslint/require-await -- what is thrown is a rejection
  async put({ labels, ...change }: ServicesSpec, { signal }: CallOptions): Promise<Services> {
    signal.throwIfAborted();
    if (change.revision === this.#table.revision) this.#asked++;
    this.#table.apply(change);
    this.#labels = labels;
    this.#wake.fire();
    return { revision: this.#table.revision!, services: this.#table.size };
  }

  /** This machine's guest is told from now on, until it is forgotten. */
  keep(id: string, guest: Provider, labels: Labels): void {
    if (this.#kept.get(id)?.guest === guest) return;
    this.forget(id);
    const kept = { guest, labels, stop: new AbortController() };
    this.#kept.set(id, kept);
    void this.#run(kept);
  }

  forget(id: string): void {
    this.#kept.get(id)?.stop.abort();
    this.#kept.delete(id);
  }

  /**
   * Before a machine begins. A guest that cannot be told then is told later: this is no reason to have no machine. Said
   * early, it costs no time when it is waited for.
   */
  async before(guest: Provider, labels: Labels, { signal }: CallOptions): Promise<void> {
    const hasIt = this.#told.get(guest)?.revision === this.#table.revision;
    if (this.#isOwn(labels) && !hasIt) await this.#bring(guest, labels, signal);
  }

  /** A VM that waits for a machine: that will not have to wait for this. */
  async warm(guest: Provider, { signal }: CallOptions): Promise<void> {
    const { revision } = this.#table;
    if (revision !== undefined && this.#told.get(guest)?.revision !== revision)
      await this.#bring(guest, this.#labels, signal);
  }

  /** Whether what was told is of machines with these labels. */
  #isOwn(labels: Labels): boolean {
    return this.#table.revision !== undefined && isSubset(this.#labels, labels);
  }

  async #run({ guest, labels, stop }: Kept): Promise<void> {
    const { clock } = this.#options;
    using linked = linkAbort(this.#options.signal, stop.signal);
    const { signal } = linked;
    let asked = this.#asked;
    while (!signal.aborted) {
      const isToAsk = asked !== this.#asked;
      asked = this.#asked;
      const isOld = this.#told.get(guest)?.revision !== this.#table.revision;
      if (!this.#isOwn(labels) || !(isOld || isToAsk)) await this.#wake.wait(signal);
      else if (!(await this.#bring(guest, labels, signal))) await pause(clock, RETRY_MS, signal);
      else if (this.#deaf.has(guest)) return;
    }
  }

  /** Once at a time. @returns whether it has what there is, or never will */
  async #bring(guest: Provider, labels: Labels, signal: AbortSignal): Promise<boolean> {
    const { revision } = this.#table;
    const under = this.#underWay.get(guest);
    if (under !== undefined && under.revision === revision) return await under.told;
    const told = this.#tell(guest, labels, signal);
    const own = { revision, told };
    this.#underWay.set(guest, own);
    try {
      return await told;
    } finally {
      if (this.#underWay.get(guest) === own) this.#underWay.delete(guest);
    }
  }

  async #tell(guest: Provider, labels: Labels, signal: AbortSignal): Promise<boolean> {
    const { services } = guest;
    let told = this.#told.get(guest);
    if (told === undefined && services !== undefined) this.#told.set(guest, (told = new ToldServices(services)));
    if (told === undefined) this.#deaf.add(guest);
    if (this.#deaf.has(guest)) return true;
    try {
      const bring = () => told!.bring(this.#table, this.#labels, signal);
      await this.#places.run(labels[LABEL_NAMESPACE] ?? "", bring, signal);
      return true;
    } catch (thrown) {
      if (isProviderError(thrown, "unsupported") || isProviderError(thrown, "not_found")) this.#deaf.add(guest);
      else if (!signal.aborted)
        this.#options.logger.debug({ err: thrown }, "A guest cannot be told of the cluster's Services yet");
      return this.#deaf.has(guest);
    }
  }
}
