/** Reads the little of sh that the memory provider knows: separators, quotes, variables, the endless loop. */

export type Step = { kind: "simple"; text: string; and: boolean } | { kind: "loop"; body: Step[]; and: boolean };

/** Splits at `;`, newlines and `&&` outside quotes; `while true; do … done` becomes one step. */
export function parseScript(script: string): Step[] {
  const steps: Step[] = [];
  const stack: Step[][] = [steps];
  let and = false;
  for (const { text, separator } of separate(script)) {
    let rest = text.trim();
    const current = stack.at(-1)!;
    if (/^while\s+(true|:)$/.test(rest)) {
      const loop: Step = { kind: "loop", body: [], and };
      current.push(loop);
      stack.push(loop.body);
      rest = "";
    } else if (rest === "done") {
      stack.pop();
      rest = "";
    }
    rest = rest.replace(/^do\s+/, "");
    if (rest !== "" && rest !== "do") stack.at(-1)!.push({ kind: "simple", text: rest, and });
    and = separator === "&&";
  }
  return steps;
}

function* separate(script: string): Generator<{ text: string; separator: string }> {
  let quote = "";
  let start = 0;
  for (let i = 0; i < script.length; i++) {
    const char = script[i]!;
    if (quote !== "") {
      if (char === quote) quote = "";
    } else if (char === "'" || char === '"') quote = char;
    else if (char === "\\") i++;
    else if (char === ";" || char === "\n") {
      yield { text: script.slice(start, i), separator: ";" };
      start = i + 1;
    } else if (char === "&" && script[i + 1] === "&") {
      yield { text: script.slice(start, i), separator: "&&" };
      start = i + 2;
      i++;
    } else if (char === "&" && script[i - 1] !== ">") {
      // In the background: what follows is `wait`, and until then nothing can be told apart.
      yield { text: ":", separator: ";" };
      start = i + 1;
    }
  }
  yield { text: script.slice(start), separator: ";" };
}

export function splitWords(text: string, variables: Readonly<Record<string, string>>): string[] {
  const words: string[] = [];
  for (const [word] of text.matchAll(/(?:'[^']*'|"[^"]*"|\\.|[^\s'"\\])+/g)) {
    words.push(
      word.replaceAll(
        /'([^']*)'|"([^"]*)"|\\(.)|([^'"\\]+)/g,
        (_all, single?: string, double?: string, escaped?: string, bare?: string) => {
          if (single !== undefined) return single;
          if (escaped !== undefined) return escaped;
          return expand(double ?? bare ?? "", variables);
        },
      ),
    );
  }
  return words;
}

function expand(text: string, variables: Readonly<Record<string, string>>): string {
  return text.replaceAll(/\$(?:\{(\w+)\}|(\w+)|\$)/g, (_all, braced?: string, bare?: string) => {
    const name = braced ?? bare;
    return name === undefined ? "1" : (variables[name] ?? "");
  });
}
