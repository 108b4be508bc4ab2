/** The ResourceClaims that one machine's drivers have made ready, as its record has them. */
import type { MachineSpec } from "../../../src/provider/kit/index.ts";
import type { ClaimHolder, PreparedClaims } from "../claims.ts";
import type { MachineRecord } from "./record.ts";

export class MachineClaims implements ClaimHolder {
  readonly #state: { readonly id: string; readonly spec: MachineSpec; write(): void };
  readonly #record: MachineRecord;

  constructor(state: { readonly id: string; readonly spec: MachineSpec; write(): void }, record: MachineRecord) {
    this.#state = state;
    this.#record = record;
  }

  get id(): string {
    return this.#state.id;
  }

  get spec(): MachineSpec {
    return this.#state.spec;
  }

  get prepared(): PreparedClaims | undefined {
    return this.#record.prepared;
  }

  keep(claims: PreparedClaims | undefined): void {
    const before = this.#record.prepared;
    this.#set(claims);
    try {
      this.#state.write();
    } catch (thrown) {
      this.#set(before);
      throw thrown;
    }
  }

  #set(claims: PreparedClaims | undefined): void {
    if (claims === undefined) delete this.#record.prepared;
    else this.#record.prepared = claims;
  }
}
