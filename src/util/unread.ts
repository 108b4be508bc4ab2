/**
 * One budget for the unread bytes that all sessions hold in memory: messages that are begun and not ended, input that a
 * command does not read, output of a command that is collected. When it is exceeded, sessions are ended, first those of
 * the tenant that holds most.
 */
interface UnreadSession {
  /** Who is charged: the namespace. */
  tenant: string;
  /** Bytes that it holds now. */
  measure(): number;
  /** Ends the session, so that its bytes are freed. */
  cut(): void;
}

export interface UnreadAccount {
  /** Adds bytes that have arrived. Those that were read since are subtracted when the budget is measured. */
  add(bytes: number): void;
  leave(): void;
}

/** Each piece is an object besides its bytes. */
const PIECE_BYTES = 256;

export class UnreadBytes {
  readonly #limit: number;
  readonly #sessions = new Set<UnreadSession>();
  /** Never less than what is held. */
  #estimate = 0;

  /** @param limit in bytes. Default 64 MiB */
  constructor(limit: number = 64 * 1024 * 1024) {
    this.#limit = limit;
  }

  join(session: UnreadSession): UnreadAccount {
    this.#sessions.add(session);
    return {
      add: (bytes) => {
        this.#estimate += bytes + PIECE_BYTES;
        if (this.#estimate > this.#limit) this.#settle();
      },
      leave: () => void this.#sessions.delete(session),
    };
  }

  #settle(): void {
    let held = [...this.#sessions].map((session) => ({ session, bytes: session.measure() }));
    const sum = (list: typeof held) => list.reduce((total, { bytes }) => total + bytes, 0);
    // A little less than all, so that it is not measured again for every byte.
    while (sum(held) > this.#limit * 0.9) {
      const tenants = new Map<string, number>();
      for (const { session, bytes } of held) tenants.set(session.tenant, (tenants.get(session.tenant) ?? 0) + bytes);
      const [most] = [...tenants].reduce((one, other) => (other[1] > one[1] ? other : one));
      const victim = held
        .filter(({ session }) => session.tenant === most)
        .reduce((one, other) => (other.bytes > one.bytes ? other : one));
      held = held.filter((each) => each !== victim);
      this.#sessions.delete(victim.session);
      victim.session.cut();
    }
    this.#estimate = sum(held);
  }
}

/** How a session takes part in it. */
export interface UnreadShare {
  budget: UnreadBytes;
  tenant: string;
}
