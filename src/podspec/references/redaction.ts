/**
 * Keeps texts of a backend from quoting what a pod keeps secret: a backend's error often repeats what it was given, and
 * users who may read pods and events need not be allowed to read Secrets. Pure.
 */
import { bisect } from "../../util/bisect.ts";

/** @internal */
export const REDACTED = "[redacted]";

/** Shorter ones are words of everyday texts: `true`, `admin`, `eu-west`. */
const MIN_LENGTH = 8;
/** Longer ones are looked for in pieces, so that half a quotation is found as well. */
const PIECE_LENGTH = 128;
/** Of several lines each counts: no message quotes all of them. */
const MIN_LINE_LENGTH = 16;
/** The values that are remembered of one pod; the oldest are forgotten first. */
const MAX_VALUES = 512;
const MAX_CHARACTERS = 64 * 1024;
/** How much is searched of the text in which values are public. */
const MAX_PUBLIC = 64 * 1024;

export class Redactor {
  /** Values, the latest last. */
  readonly #values = new Set<string>();
  #characters = 0;
  /** What stands for a value; undefined until it is asked for. */
  #forms: Forms | undefined;

  /** @param publicText what every reader of the pod may read: a value that appears there is not secret */
  add(values: Iterable<string>, publicText: string): void {
    const known = publicText.slice(0, MAX_PUBLIC);
    for (const value of values) {
      for (const part of partsOf(value)) {
        if (this.#values.delete(part)) this.#characters -= part.length;
        else if (known.includes(part)) continue;
        this.#values.add(part);
        this.#characters += part.length;
        this.#forms = undefined;
        if (this.#values.size > MAX_VALUES || this.#characters > MAX_CHARACTERS) this.#forgetFirst();
      }
    }
  }

  /** `text` with every value replaced: as it is, escaped as in JSON, percent-encoded, or within something in base64. */
  redact(text: string): string {
    if (this.#values.size === 0 || text.length < MIN_LENGTH) return text;
    const forms = (this.#forms ??= new Forms(this.#values));
    let redacted = "";
    let copied = 0;
    for (let at = 0; at + MIN_LENGTH <= text.length;) {
      const length = forms.at(text, at);
      if (length === 0) at++;
      else {
        redacted += text.slice(copied, at) + REDACTED;
        copied = at += length;
      }
    }
    return copied === 0 ? text : redacted + text.slice(copied);
  }

  #forgetFirst(): void {
    const [first] = this.#values;
    this.#values.delete(first!);
    this.#characters -= first!.length;
  }
}

/** Which parts of a value are looked for: all of it, in pieces where it is long, and each longer line of several. */
function* partsOf(value: string): Iterable<string> {
  const whole = value.slice(0, MAX_CHARACTERS).trim();
  if (!whole.includes("\n")) yield* piecesOf(whole);
  else for (const line of whole.split("\n")) if (line.trim().length >= MIN_LINE_LENGTH) yield* piecesOf(line.trim());
}

function* piecesOf(text: string): Iterable<string> {
  for (let at = 0; at < text.length; at += PIECE_LENGTH) {
    const piece = text.slice(at, at + PIECE_LENGTH);
    if (piece.length >= MIN_LENGTH) yield piece;
  }
}

/** Texts of which the longest that begins at a place is found without trying them all, however alike they are. */
class Forms {
  /**
   * By their first `MIN_LENGTH` characters: sorted, each with the place of the longest other one that it begins with,
   * or -1.
   */
  readonly #groups = new Map<string, { sorted: string[]; within: number[] }>();

  constructor(values: Iterable<string>) {
    const all = new Set([...values].flatMap((value) => [value, ...encodingsOf(value)]));
    for (const form of [...all].sort()) {
      if (form.length < MIN_LENGTH) continue;
      const start = form.slice(0, MIN_LENGTH);
      let group = this.#groups.get(start);
      if (group === undefined) this.#groups.set(start, (group = { sorted: [], within: [] }));
      let place = group.sorted.length - 1;
      while (place >= 0 && !form.startsWith(group.sorted[place]!)) place = group.within[place]!;
      group.sorted.push(form);
      group.within.push(place);
    }
  }

  /** The length of the longest form that begins in `text` at `at`; 0 when none does. */
  at(text: string, at: number): number {
    const group = this.#groups.get(text.slice(at, at + MIN_LENGTH));
    if (group === undefined) return 0;
    const { sorted, within } = group;
    const rest = text.slice(at, at + LONGEST_FORM);
    // The last that does not come after it: any word that the text begins with, this one begins with, too.
    let place = bisect(sorted.length, (index) => sorted[index]! > rest) - 1;
    if (place < 0) return 0;
    const common = commonLength(sorted[place]!, rest);
    while (place >= 0 && sorted[place]!.length > common) place = within[place]!;
    return place < 0 ? 0 : sorted[place]!.length;
  }
}

/** A character has at most six in JSON, and nine when it is percent-encoded. */
const LONGEST_FORM = PIECE_LENGTH * 9;

function commonLength(a: string, b: string): number {
  let length = 0;
  while (length < a.length && a[length] === b[length]) length++;
  return length;
}

function encodingsOf(value: string): string[] {
  // What begins within something else is encoded in one of three ways; the characters at its ends depend on what is
  // around it.
  const inBase64 = [0, 1, 2].map((offset) => {
    const encoded = Buffer.concat([Buffer.alloc(offset), Buffer.from(value)]).toString("base64url");
    const bytes = offset + Buffer.byteLength(value);
    return encoded.slice(Math.ceil((offset * 8) / 6), Math.floor((bytes * 8) / 6));
  });
  return [
    JSON.stringify(value).slice(1, -1),
    // A lone surrogate is not a character, and nothing that encodes text lets it through.
    encodeURIComponent(value.toWellFormed()),
    ...inBase64,
    ...inBase64.map((text) => text.replaceAll("-", "+").replaceAll("_", "/")),
  ];
}
