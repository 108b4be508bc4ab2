/**
 * The cluster's Services on a host of one Node's machines alone, or of one machine (a cloud's VM): what its agent tells
 * is written down, for the next backend, and told to nft. A host of several clusters' machines has no such thing, for a
 * Service's address would be another cluster's too.
 */
import { isIPv4 } from "node:net";
import { join } from "node:path";
import {
  type CallOptions,
  isSubset,
  type Logger,
  ProviderError,
  type ServicePort,
  type Services,
  type ServicesDifference,
  type ServicesProvider,
  type ServicesSpec,
  ServiceTable,
  toError,
} from "../../../src/provider/kit/index.ts";
import { writeJson } from "../host/files.ts";
import { TornFiles } from "../host/torn-files.ts";
import { forgetServices } from "./connections.ts";
import { isLink } from "./links.ts";
import { allServiceRules, changedServiceRules } from "./service-rules.ts";
import { runSoon } from "./tools.ts";

interface HostServicesOptions {
  stateDir: string;
  /** The machines' link. */
  bridge: string;
  /** Whether an agent with these labels tells it. Default: who has told first does, for ever. */
  isTold?: ((labels: Readonly<Record<string, string>>) => boolean) | undefined;
  logger: Logger;
}

interface Kept {
  labels: Record<string, string>;
  revision: string;
  services: ServicePort[];
}

export class HostServices implements ServicesProvider {
  readonly #options: HostServicesOptions;
  readonly #file: string;
  readonly #names: { table: string; bridge: string };
  readonly #table = new ServiceTable();
  #labels: Record<string, string> | undefined;
  /** The rules are what the table says, for all that is known. */
  #isInPlace = false;
  /** The host's address, and that which its machine has behind it. */
  #lead: { outside: string; inside: string } | undefined;
  /** One change after the other. */
  #last: Promise<unknown> = Promise.resolve();

  /** @throws what the disk says */
  constructor(options: HostServicesOptions) {
    const { stateDir, bridge, logger } = options;
    this.#options = options;
    this.#names = { table: `vmlet_${bridge}_services`, bridge };
    this.#file = join(stateDir, "services.json");
    const kept = new TornFiles(stateDir, logger).readJson(this.#file, isKept);
    if (kept === undefined) return;
    try {
      this.#table.apply({ revision: kept.revision, services: kept.services });
      this.#labels = kept.labels;
    } catch (thrown) {
      logger.warn({ err: thrown }, "What this host knows of the cluster's Services makes no sense: it is told again");
    }
  }

  /** Puts the rules in place that a former backend has kept, which are gone with a boot of the host. */
  async restore(): Promise<void> {
    if (this.#table.revision === undefined) return;
    await this.#bringLater();
  }

  /** What does not succeed now does with the next that is told, within a minute: no machine waits for it. */
  async #bringLater(): Promise<void> {
    await this.#inTurn(() => this.#bringAll()).catch((thrown: unknown) => {
      this.#isInPlace = false;
      this.#options.logger.warn({ err: thrown }, "Machines do not reach the cluster's Services yet");
    });
  }

  /** The machine has the host's address: a Service of its own leads to it, behind that. */
  async lead(outside: string, inside: string): Promise<void> {
    if (this.#lead?.outside === outside && this.#lead.inside === inside) return;
    this.#lead = { outside, inside };
    if (this.#table.ports.some(({ endpoints }) => endpoints.some(({ address }) => address === outside)))
      await this.#bringLater();
  }

  async put({ labels, ...change }: ServicesSpec, { signal }: CallOptions): Promise<Services> {
    signal.throwIfAborted();
    return await this.#inTurn(async () => {
      this.#assertOwner(labels);
      const difference = this.#table.apply(change);
      this.#labels = labels;
      try {
        await this.#bring(difference);
      } catch (thrown) {
        this.#isInPlace = false;
        const why = `nft does not take the rules of the cluster's Services: ${toError(thrown).message}`;
        throw new ProviderError("unavailable", why, { cause: thrown });
      }
      return { revision: this.#table.revision!, services: this.#table.size };
    });
  }

  /** With the bridge go the rules that are for who is behind it. */
  async close(): Promise<void> {
    const { bridge, table } = this.#names;
    await this.#last;
    if (!isLink(bridge)) await nft(`add table ip ${table}\ndelete table ip ${table}\n`).catch(() => undefined);
  }

  #assertOwner(labels: Readonly<Record<string, string>>): void {
    const known = this.#labels;
    const isFirst = known === undefined || (isSubset(known, labels) && isSubset(labels, known));
    const { isTold = () => isFirst } = this.#options;
    if (isTold(labels)) return;
    throw new ProviderError(
      "unavailable",
      "this host's machines reach the Services that their Node's agent tells of: that is another one, or has not told their addresses yet",
    );
  }

  async #bring({ set, replaced }: ServicesDifference): Promise<void> {
    const isOther = set.length + replaced.length > 0;
    if (!this.#isInPlace || (!isOther && !(await this.#isThere()))) await this.#bringAll();
    else if (isOther) {
      const [now, before] = [set.filter(isOfIpv4), replaced.filter(isOfIpv4)];
      // What one of several programs has flushed is no reason to have none.
      await nft(changedServiceRules(this.#names, { set: now, replaced: before }, this.#inPlaceOf)).catch(() =>
        this.#bringAll(),
      );
    }
    if (!isOther) return;
    await forgetServices(set.filter(isOfIpv4), replaced.filter(isOfIpv4), this.#inPlaceOf);
    this.#keep();
  }

  async #bringAll(): Promise<void> {
    await nft(allServiceRules(this.#names, this.#table.ports.filter(isOfIpv4), this.#inPlaceOf));
    this.#isInPlace = true;
  }

  async #isThere(): Promise<boolean> {
    const { stdout } = await runSoon("nft", ["list", "tables", "ip"]);
    return stdout.toString().split("\n").includes(`table ip ${this.#names.table}`);
  }

  /** A disk that is full is no reason to have no Services: they are told again. */
  #keep(): void {
    const { revision = "", ports } = this.#table;
    try {
      writeJson(this.#file, { labels: this.#labels ?? {}, revision, services: [...ports] } satisfies Kept);
    } catch (thrown) {
      this.#options.logger.warn({ err: thrown }, "What is known of the cluster's Services cannot be written down");
    }
  }

  readonly #inPlaceOf = (address: string): string => (this.#lead?.outside === address ? this.#lead.inside : address);

  async #inTurn<T>(work: () => Promise<T>): Promise<T> {
    const turn = this.#last.then(work);
    this.#last = turn.catch(() => undefined);
    return await turn;
  }
}

const isOfIpv4 = ({ address }: ServicePort): boolean => isIPv4(address);

async function nft(script: string): Promise<void> {
  await runSoon("nft", ["-f", "-"], { input: script });
}

function isKept(value: unknown): value is Kept {
  const { labels, revision, services } = (value ?? {}) as Partial<Record<keyof Kept, unknown>>;
  return typeof labels === "object" && labels !== null && typeof revision === "string" && Array.isArray(services);
}
