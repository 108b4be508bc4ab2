/** The cluster's Services, as a backend of the Machine API is told of them. */
import type { CallOptions, Services, ServicesProvider, ServicesSpec } from "../../src/provider/kit/index.ts";
import { violation } from "../../src/provider/contract/document.ts";
import { SERVICES_PATH as path } from "./call.ts";
import type { MachineApiClient } from "./client.ts";
import type { Judge } from "./judge.ts";
import { requireValid } from "./validate.ts";

export class HttpVmServices implements ServicesProvider {
  readonly #client: MachineApiClient;
  readonly #judge: Judge;

  constructor(client: MachineApiClient, judge: Judge) {
    this.#client = client;
    this.#judge = judge;
  }

  async put(spec: ServicesSpec, { signal }: CallOptions): Promise<Services> {
    requireValid(violation("request", "ServicesSpec", spec));
    const { revision, services } = await this.#client.json({ method: "PUT", path, body: spec, signal }, "Services");
    if (revision === spec.revision) return { revision, services };
    throw this.#judge.refuse("revision", "the reply is about another table of Services than the one that was told");
  }
}
