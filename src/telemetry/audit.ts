/**
 * The audit: who did what to whose machine, one line each, for a person or a program that reads it later. It contains
 * what callers send, so every text is cut to a length, and none can look like another line or steer a terminal.
 */
import type { Clock } from "../util/clock.ts";
import type { Logger } from "./logger.ts";

/** How much of a command is written: arguments may hold secrets. `first` is its first word, and the number of words. */
export type AuditedCommand = "first" | "full";

interface AuditOptions {
  logger: Logger;
  clock: Clock;
  /** Default `first`. */
  commands?: AuditedCommand | undefined;
}

/** What a line says beside `audit`, the action's name. Fields that are undefined are left out. */
interface AuditFields {
  /** `ok`, `refused` (nothing was done) or `failed` (something was, and went wrong). */
  result: "ok" | "refused" | "failed";
  [field: string]: AuditValue;
}
type AuditValue = string | number | boolean | readonly (string | number)[] | undefined;

/**
 * Of refusals, which cost a caller nothing; the next line tells how many were not written. What was done is always
 * written.
 */
const REFUSALS_PER_SECOND = 100;
const MAX_TEXT = 256;
const MAX_ITEMS = 32;

export class AuditLog {
  readonly #logger: Logger;
  readonly #clock: Clock;
  readonly #commands: AuditedCommand;
  #second = 0;
  #refusals = 0;
  #unwritten = 0;

  constructor({ logger, clock, commands = "first" }: AuditOptions) {
    this.#logger = logger;
    this.#clock = clock;
    this.#commands = commands;
  }

  /** Milliseconds from an arbitrary start, for `durationMs`. */
  now(): number {
    return this.#clock.monotonic();
  }

  /** @param since what `now` was when it began */
  write(action: string, since: number, fields: AuditFields): void {
    if (fields.result === "refused" && !this.#mayRefuse()) {
      this.#unwritten++;
      return;
    }
    const line: Record<string, unknown> = { audit: action };
    for (const [name, value] of Object.entries(fields)) if (value !== undefined) line[name] = bounded(value);
    line["durationMs"] = Math.round(this.#clock.monotonic() - since);
    if (this.#unwritten > 0) line["refusalsNotWritten"] = this.#unwritten;
    this.#unwritten = 0;
    this.#logger.info(line, "Audit");
  }

  /** How a line describes a command. */
  command(words: readonly string[]): { command?: string | readonly string[]; commandWords?: number } {
    if (words.length === 0) return {};
    return { command: this.#commands === "full" ? words : words[0]!, commandWords: words.length };
  }

  #mayRefuse(): boolean {
    const second = Math.floor(this.#clock.monotonic() / 1000);
    if (second !== this.#second) this.#refusals = 0;
    this.#second = second;
    return this.#refusals++ < REFUSALS_PER_SECOND;
  }
}

function bounded(value: NonNullable<AuditValue>): unknown {
  if (typeof value === "string") return printable(value);
  if (typeof value !== "object") return value;
  const items = value.slice(0, MAX_ITEMS).map((item) => (typeof item === "string" ? printable(item) : item));
  return value.length > MAX_ITEMS ? [...items, `... ${value.length - MAX_ITEMS} more`] : items;
}

/** Control and format characters, line separators, lone surrogates. */
const UNPRINTABLE = /[\p{C}\p{Zl}\p{Zp}]/gu;

function printable(text: string): string {
  const cut = text.length > MAX_TEXT ? `${text.slice(0, MAX_TEXT)}...` : text;
  return cut.replace(UNPRINTABLE, "\ufffd");
}
