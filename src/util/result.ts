/** What could not be had, as a value: for what is expected to fail, and is told to somebody. */
export type Result<T> = { ok: true; value: T } | { ok: false; message: string };

export const success = <T>(value: T): Result<T> => ({ ok: true, value });

/** @param message says what is wrong, for a person */
export const failure = (message: string): { ok: false; message: string } => ({ ok: false, message });
