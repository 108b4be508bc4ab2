/** What somebody was told of the cluster's Services, so that the next time only what has changed is. */
import { isProviderError } from "./errors.ts";
import type { ServicesProvider, ServiceTable } from "./services.ts";

/** What it was told last may be another than it has, and then it may have been told by somebody else meanwhile. */
const TRIES = 3;

export class ToldServices {
  readonly #services: ServicesProvider;
  /** What it has, for all that is known. */
  #revision: string | undefined;
  /** One call after the other. */
  #last: Promise<unknown> = Promise.resolve();

  constructor(services: ServicesProvider) {
    this.#services = services;
  }

  get revision(): string | undefined {
    return this.#revision;
  }

  /**
   * At least one call, also when nothing has changed: it may have lost what it had.
   * @param labels of the machines for which the table holds
   * @throws ProviderError what the call did, but for conflict; with that after a few tries
   */
  async bring(table: ServiceTable, labels: Readonly<Record<string, string>>, signal: AbortSignal): Promise<void> {
    const turn = this.#last.then(() => this.#tell(table, labels, signal));
    this.#last = turn.catch(() => undefined);
    await turn;
  }

  async #tell(table: ServiceTable, labels: Readonly<Record<string, string>>, signal: AbortSignal): Promise<void> {
    for (let tries = 1; ; tries++) {
      const { revision } = table;
      if (revision === undefined) return;
      const changes = table.since(this.#revision);
      if (changes.length === 0) changes.push({ base: revision, revision, services: [] });
      try {
        for (const change of changes) {
          await this.#services.put({ labels: { ...labels }, ...change }, { signal });
          this.#revision = change.revision;
        }
        return;
      } catch (thrown) {
        // It may have it, and the reply was lost: then that is its revision, and all of it is said again for nothing.
        this.#revision = undefined;
        if (tries === TRIES || !isProviderError(thrown, "conflict")) throw thrown;
      }
    }
  }
}
