import type { Tenant } from "./tenant.ts";

/** Harm under way. */
export interface Harm {
  /** Runs while the neighbour lives, and resolves when the tenant has got what it deserves: a pod that is refused with a reason. */
  deserved?(): Promise<unknown>;
  /** After that. Its pods are removed without it. */
  end?(): void;
}

/** One way to do harm: by a budget or limit that it goes far beyond, and what is not to suffer. */
export interface HostileCase {
  /** Completes "a tenant ...". */
  name: string;
  /** What its namespace's name begins with. Default: `hostile`. */
  namespace?: string;
  /** Does the harm, and resolves when it is under way. */
  begin(tenant: Tenant): Promise<Harm>;
}
