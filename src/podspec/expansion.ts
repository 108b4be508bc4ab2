/**
 * `$(NAME)` references, as Kubernetes expands them in env values, command, args and subPathExpr
 * (third_party/forked/golang/expansion): `$$` is a literal `$`, an unknown name stays as it is written, a lone `$` and an
 * unterminated `$(` are literal. There is no nesting.
 */

/** Expands every reference with `lookUp`; where that gives undefined, the reference stays. */
export function expand(input: string, lookUp: (name: string) => string | undefined): string {
  let output = "";
  let position = 0;
  for (;;) {
    const dollar = input.indexOf("$", position);
    if (dollar === -1 || dollar === input.length - 1) return output + input.slice(position);
    output += input.slice(position, dollar);
    const next = input[dollar + 1];
    if (next === "$") {
      output += "$";
      position = dollar + 2;
      continue;
    }
    const close = next === "(" ? input.indexOf(")", dollar + 2) : -1;
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
