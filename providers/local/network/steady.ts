/** Interfaces of machines come and go while rules are written that name them. */

const TRIES = 3;

/**
 * Does `act`, which names all that `look` finds: again when it fails and something of that has gone or come meanwhile,
 * for then that was why.
 */
export async function whileSteady<T>(look: () => Promise<readonly string[]>, act: () => Promise<T>): Promise<T> {
  for (let tries = 1; ; tries++) {
    const before = (await look()).join();
    try {
      return await act();
    } catch (thrown) {
      if (tries === TRIES || (await look()).join() === before) throw thrown;
    }
  }
}

/** What two looks in a row find; undefined, which is the end of it, counts at once. */
export async function sameTwice<T>(look: () => Promise<T | undefined>): Promise<T | undefined> {
  let last: T | undefined;
  for (let tries = 0; tries < TRIES; tries++) {
    const found = await look();
    if (found === undefined || found === last) return found;
    last = found;
  }
  return last;
}
