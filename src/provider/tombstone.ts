/** What a deleted machine leaves behind, so that its id is never used again. */
import type { Machine } from "./machine.ts";

/** The machine's tombstone, with its last container statuses. @param now wall-clock milliseconds */
export function tombstoneOf(machine: Machine, now: number): Machine {
  return { ...machine, state: "deleted", sandbox_ready: false, deleted_at: new Date(now).toISOString() };
}

/** A machine that was deleted before it was ever created: its tombstone is found by a create that comes late. */
export function unseenMachine(id: string, now: number): Machine {
  return {
    id,
    version: 0,
    revision: 0,
    labels: {},
    state: "deleted",
    reachability: "ok",
    sandbox_ready: false,
    created_at: new Date(now).toISOString(),
    addresses: [],
    containers: [],
  };
}
