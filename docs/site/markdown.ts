/** Documents of the repository as pages of the site: where their links lead, and by which names their headings are found. */

/** As GitHub names a heading, so that a link leads to the same place here and there. */
export function slug(heading: string): string {
  return heading
    .trim()
    .toLowerCase()
    .replaceAll(/[^\p{L}\p{N}\p{M}\s_-]/gu, "")
    .replaceAll(/\s/g, "-");
}

/** Every anchor of the document. */
export function anchors(markdown: string): Set<string> {
  const seen = new Map<string, number>();
  const found = new Set<string>();
  for (const part of outsideOfFences(markdown))
    for (const [, heading = ""] of part.matchAll(/^#{1,6} (.*)$/gm)) {
      const name = slug(heading.replaceAll(/\[([^[\]]*)\]\([^()]*\)/g, "$1"));
      const count = seen.get(name) ?? 0;
      seen.set(name, count + 1);
      found.add(count === 0 ? name : `${name}-${count}`);
    }
  return found;
}

/** The document with each link's target, pictures' among them, replaced by what `replace` makes of it. */
export function withLinks(markdown: string, replace: (target: string) => string): string {
  return onProse(markdown, (prose) =>
    prose.replaceAll(/(\]\()([^()\s]+)(\))/g, (_, before, target, after) => `${before}${replace(target)}${after}`),
  );
}

/**
 * The document without what only GitHub's renderer understands: comments go, and a picture with a dark twin is the light
 * one. Elsewhere on the site markup is text.
 */
export function withoutMarkup(markdown: string): string {
  return onProse(markdown, (prose) =>
    prose
      .replaceAll(/<!--[\s\S]*?-->/g, "")
      .replaceAll(/<picture>[\s\S]*?<img src="([^"]*)" alt="([^"]*)" \/>\s*<\/picture>/g, "![$2]($1)"),
  );
}

function onProse(markdown: string, change: (prose: string) => string): string {
  return parts(markdown)
    .map(({ text, isCode }) => (isCode ? text : change(text)))
    .join("");
}

function outsideOfFences(markdown: string): string[] {
  return parts(markdown)
    .filter(({ isCode }) => !isCode)
    .map(({ text }) => text);
}

function parts(markdown: string): { text: string; isCode: boolean }[] {
  return markdown.split(/(^ *```[^\n]*\n[\s\S]*?^ *```$)/m).map((text, index) => ({ text, isCode: index % 2 === 1 }));
}

/** Rows of the first table that comes after `before`, the head's cells first. @throws Error when there is none */
export function tableAfter(markdown: string, before: string): string[][] {
  const start = markdown.indexOf(before);
  const rest = start < 0 ? "" : markdown.slice(start);
  const table = /(?:^\|.*\|$\n?)+/m.exec(rest)?.[0];
  if (table === undefined) throw new Error(`there is no table after ${JSON.stringify(before)}`);
  return table
    .trim()
    .split("\n")
    .filter((_, index) => index !== 1)
    .map((line) =>
      line
        .slice(1, -1)
        .split("|")
        .map((cell) => cell.trim()),
    );
}

export function table(head: readonly string[], rows: readonly (readonly string[])[]): string {
  const line = (cells: readonly string[]) => `| ${cells.map(inCell).join(" | ")} |`;
  return [line(head), line(head.map(() => "---")), ...rows.map(line)].join("\n");
}

function inCell(text: string): string {
  const lines = text.split("\n").map((line) => line.trim());
  return lines.join(" ").replaceAll(/(?<!\\)\|/g, "\\|");
}
