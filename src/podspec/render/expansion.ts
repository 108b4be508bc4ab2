/**
 * `$(NAME)` references, as Kubernetes expands them in env values, command, args and subPathExpr
 * (third_party/forked/golang/expansion): `$$` is a literal `$`, an unknown name stays as it is written, a lone `$` and
 * an unterminated `$(` are literal. There is no nesting.
 */
import { OverBudgetError, POD_LIMITS, type Budget } from "../budget.ts";

/**
 * Expands every reference with `lookUp`; where that gives undefined, the reference stays. Takes time in proportion to
 * what goes in and what comes out.
 *
 * @throws OverBudgetError as soon as the output has more than `maxLength` characters
 */
export function expand(input: string, lookUp: (name: string) => string | undefined, maxLength = Infinity): string {
  let output = "";
  let position = 0;
  const lastClose = input.lastIndexOf(")");
  for (;;) {
    if (output.length > maxLength)
      throw new OverBudgetError(`"${input.slice(0, 64)}" would expand to more than ${maxLength} bytes`);
    const dollar = input.indexOf("$", position);
    if (dollar === -1 || dollar === input.length - 1) return output + input.slice(position);
    output += input.slice(position, dollar);
    const next = input[dollar + 1];
    if (next === "$") {
      output += "$";
      position = dollar + 2;
      continue;
    }
    // Where no parenthesis closes any more, it is not looked for again and again.
    const close = next === "(" && dollar + 2 <= lastClose ? input.indexOf(")", dollar + 2) : -1;
    if (close === -1) {
      // Not a reference: the dollar and what follows it are text.
      output += "$" + next;
      position = dollar + 2;
      continue;
    }
    const name = input.slice(dollar + 2, close);
    output += lookUp(name) ?? `$(${name})`;
    position = close + 1;
  }
}

/** The words of a command, each expanded. @throws OverBudgetError */
export function expandWords(
  words: readonly string[],
  lookUp: (name: string) => string | undefined,
  budget: Budget,
): string[] {
  return words.map((word) => {
    const expanded = expand(word, lookUp, POD_LIMITS.wordBytes);
    const bytes = Buffer.byteLength(expanded);
    if (bytes > POD_LIMITS.wordBytes)
      throw new OverBudgetError(
        `"${word.slice(0, 64)}" has ${bytes} bytes, a process can be given at most ${POD_LIMITS.wordBytes} in one word`,
      );
    budget.take(bytes + 1);
    return expanded;
  });
}

/** A look-up over several maps, the first that knows the name wins. Later changes of the maps are seen. */
export function lookUpIn(...maps: readonly ReadonlyMap<string, string>[]): (name: string) => string | undefined {
  return (name) => {
    for (const map of maps) {
      const value = map.get(name);
      if (value !== undefined) return value;
    }
    return undefined;
  };
}
