/**
 * Go's `filepath.Match`, in time that grows with the length of the pattern times that of the text, whatever they are:
 * patterns come from pull secrets, so from anybody.
 *
 *   pattern:  { term }
 *   term:     '*'          any number of characters but '/'
 *             '?'          one character but '/'
 *             '[' [ '^' ] { range } ']'   one character of these (or none of them)
 *             '\' c or c   the character c
 *   range:    c, or lo '-' hi
 */

/** Whether a character is one that the term stands for. */
type Term = "*" | ((character: string) => boolean);

/** True when `pattern` matches all of `text`; false as well for a pattern that is malformed (Go: `ErrBadPattern`). */
export function globMatches(pattern: string, text: string): boolean {
  const terms = parse(Array.from(pattern));
  if (terms === undefined) return false;
  const characters = Array.from(text);
  let at = 0;
  let term = 0;
  // Where to go on when what follows the last `*` does not match: one character further in the text. Earlier ones need
  // no second try, because what lay between was matched as early as it could be.
  let star: { term: number; at: number } | undefined;
  while (at < characters.length) {
    const current = terms[term];
    if (current === "*") {
      star = { term: ++term, at };
    } else if (current !== undefined && current(characters[at]!)) {
      term++;
      at++;
    } else if (star !== undefined && characters[star.at] !== "/") {
      star.at++;
      ({ term, at } = star);
    } else {
      return false;
    }
  }
  return terms.slice(term).every((rest) => rest === "*");
}

/** True unless the pattern is malformed (Go: `ErrBadPattern`). */
export function isGlob(pattern: string): boolean {
  return parse(Array.from(pattern)) !== undefined;
}

function parse(pattern: readonly string[]): Term[] | undefined {
  const terms: Term[] = [];
  for (let at = 0; at < pattern.length; at++) {
    let character = pattern[at]!;
    if (character === "*") {
      if (terms.at(-1) !== "*") terms.push("*");
      continue;
    }
    if (character === "?") {
      terms.push((actual) => actual !== "/");
      continue;
    }
    if (character === "[") {
      const parsed = parseClass(pattern, at + 1);
      if (parsed === undefined) return undefined;
      terms.push(parsed.term);
      at = parsed.end;
      continue;
    }
    if (character === "\\") {
      if (++at === pattern.length) return undefined;
      character = pattern[at]!;
    }
    terms.push((actual) => actual === character);
  }
  return terms;
}

/**
 * @returns the class that begins after the bracket at `start - 1`, and where its closing bracket is; undefined when
 *   malformed
 */
function parseClass(pattern: readonly string[], start: number): { term: Term; end: number } | undefined {
  let at = start;
  const isNegated = pattern[at] === "^";
  if (isNegated) at++;
  const ranges: [lo: number, hi: number][] = [];
  const read = (): number | undefined => {
    let character = pattern[at];
    if (character === "-" || character === "]") return undefined;
    if (character === "\\") character = pattern[++at];
    at++;
    return character?.codePointAt(0);
  };
  while (pattern[at] !== "]" || ranges.length === 0) {
    const lo = read();
    if (lo === undefined) return undefined;
    let hi: number | undefined = lo;
    if (pattern[at] === "-") {
      at++;
      hi = read();
      if (hi === undefined) return undefined;
    }
    ranges.push([lo, hi]);
  }
  const contains = (actual: string) => {
    const point = actual.codePointAt(0)!;
    return ranges.some(([lo, hi]) => lo <= point && point <= hi);
  };
  return { term: (actual) => contains(actual) !== isNegated, end: at };
}
