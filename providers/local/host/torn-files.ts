/**
 * Records on disk that are trusted after a restart. One that is torn (a loss of power, a broken disk) is told, set
 * aside and counts as none, so that its reader can heal it; it keeps nothing else from going on.
 */
import { randomBytes } from "node:crypto";
import { linkSync, mkdirSync, readdirSync, readFileSync, rmSync, statSync } from "node:fs";
import { join, relative } from "node:path";
import type { Logger } from "../../../src/provider/kit/index.ts";
import { isMissing } from "./files.ts";

/** The newest: they are kept for a person to look at. */
const FILES_KEPT = 32;

export class TornFiles {
  readonly #stateDir: string;
  readonly #dir: string;
  readonly #logger: Logger;

  /** @param stateDir of the backend: what is set aside goes to its folder `torn` */
  constructor(stateDir: string, logger: Logger) {
    this.#stateDir = stateDir;
    this.#dir = join(stateDir, "torn");
    this.#logger = logger;
  }

  /**
   * What a JSON file has; undefined when there is none, or it was torn and has been set aside.
   * @param isWhole says whether it is a record of its kind: what was torn may be JSON all the same
   * @throws what the system says when it cannot be read: then nothing is known of it
   */
  readJson<T>(path: string, isWhole: (value: unknown) => value is T): T | undefined {
    const found = this.tryJson(path, isWhole);
    if (found !== "torn") return found;
    rmSync(path, { force: true });
    return undefined;
  }

  /** The same, for who has to tell a torn record from none: it stays in its place until it is written again. */
  tryJson<T>(path: string, isWhole: (value: unknown) => value is T): T | "torn" | undefined {
    let text: string;
    try {
      text = readFileSync(path, "utf8");
    } catch (thrown) {
      if (isMissing(thrown)) return undefined;
      // The disk has lost it, and says so each time: that is known, as after a loss of power.
      if ((thrown as NodeJS.ErrnoException).code !== "EIO") throw thrown;
      text = "";
    }
    const value = parse(text);
    if (isWhole(value)) return value;
    this.setAside(path);
    return "torn";
  }

  /** Tells that this file is torn, and keeps it under another name. It stays where it is as well. */
  setAside(path: string): void {
    const name = relative(this.#stateDir, path).replaceAll("/", "_").replace(/^\.+/, "");
    const aside = join(this.#dir, `${name}.${randomBytes(4).toString("hex")}`);
    this.#logger.error({ path, aside }, "A record on the disk is torn: the host lost power, or the disk is broken");
    try {
      mkdirSync(this.#dir, { recursive: true, mode: 0o700 });
      linkSync(path, aside);
      this.#bound();
    } catch (thrown) {
      this.#logger.warn({ path, err: thrown }, "A torn record cannot be kept for a look at it");
    }
  }

  #bound(): void {
    const files = readdirSync(this.#dir).map((name) => join(this.#dir, name));
    const byAge = files.map((path) => ({ path, at: statSync(path).ctimeMs })).toSorted((a, b) => b.at - a.at);
    for (const { path } of byAge.slice(FILES_KEPT)) rmSync(path, { recursive: true, force: true });
  }
}

function parse(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}
