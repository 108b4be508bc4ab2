/** Files that are whole or not there, and the API's form of a time. */
import { closeSync, fsyncSync, openSync, readFileSync, renameSync, writeSync } from "node:fs";
import { dirname } from "node:path";

/** UTC, milliseconds. */
export const now = (): string => new Date().toISOString();

/** Writes all of it or nothing, also when the power goes. */
export function writeFile(path: string, value: unknown): void {
  const file = openSync(`${path}.new`, "w", 0o600);
  try {
    const data = Buffer.from(JSON.stringify(value));
    for (let done = 0; done < data.length;) done += writeSync(file, data, done);
    fsyncSync(file);
  } finally {
    closeSync(file);
  }
  renameSync(`${path}.new`, path);
  const folder = openSync(dirname(path), "r");
  fsyncSync(folder);
  closeSync(folder);
}

/** What is in it; undefined when there is no such file. */
export function readFile(path: string): unknown {
  try {
    return JSON.parse(readFileSync(path, "utf8"));
  } catch (thrown) {
    if (codeOf(thrown) === "ENOENT") return undefined;
    throw thrown;
  }
}

export const codeOf = (thrown: unknown): string | undefined => (thrown as NodeJS.ErrnoException).code;
