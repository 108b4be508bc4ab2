/**
 * Fills the folder that the site is built from: documents of the repository as they are, with links that lead to their
 * pages, and the pages that are made. A link that leads nowhere is an error here, by file and target.
 */
import { cpSync, existsSync, globSync, mkdirSync, readFileSync, rmSync, statSync, writeFileSync } from "node:fs";
import { basename, dirname, join, normalize } from "node:path";
import { made } from "./made.ts";
import { anchors, withLinks, withoutMarkup } from "./markdown.ts";
import { GROUPS, RUNBOOKS, type Page } from "./pages.ts";
import { withPlots } from "./plots.ts";

export const ROOT = join(import.meta.dirname, "../..");
/** What the repository has and the site has not is shown there. */
const REPOSITORY = "https://github.com/vmlet/vmlet";

/** Every page, runbooks among them. */
export function allPages(): Page[] {
  const runbooks = globSync(`${RUNBOOKS}/*.md`, { cwd: ROOT })
    .toSorted()
    .map((from) => ({ title: basename(from, ".md"), from, to: `runbooks/${basename(from, ".md")}` }));
  return [...GROUPS.flatMap(({ pages }) => pages), ...runbooks];
}

/** The text of each page by its path on the site. @throws Error that names each link which leads nowhere */
export function render(pages: readonly Page[] = allPages(), read = sourceOf): Map<string, string> {
  const texts = new Map(pages.map((page) => [page, withPlots(withoutMarkup(read(page)))]));
  const dead: string[] = [];
  const rendered = [...texts].map(([page, text]) => {
    const links = new Links({ page, texts });
    const linked = withLinks(text, (target) => links.to(target));
    dead.push(...links.dead);
    return [page.to, linked] as const;
  });
  if (dead.length > 0) throw new Error(`These links lead nowhere:\n${dead.join("\n")}`);
  return new Map(rendered);
}

/** Writes all pages into the folder, which is made again, and the pictures. */
export function fill(folder: string): void {
  rmSync(folder, { recursive: true, force: true });
  for (const [to, text] of render()) {
    const file = join(folder, `${to}.md`);
    mkdirSync(dirname(file), { recursive: true });
    writeFileSync(file, text);
  }
  cpSync(join(ROOT, "docs/pictures"), join(folder, "docs/pictures"), { recursive: true });
}

function sourceOf({ from }: Page): string {
  return from.startsWith("made:") ? made(from.slice("made:".length)) : readFileSync(join(ROOT, from), "utf8");
}

class Links {
  readonly dead: string[] = [];
  readonly #page: Page;
  readonly #texts: ReadonlyMap<Page, string>;

  constructor({ page, texts }: { page: Page; texts: ReadonlyMap<Page, string> }) {
    this.#page = page;
    this.#texts = texts;
  }

  to(target: string): string {
    if (/^[a-z]+:/.test(target)) return target;
    const [path = "", anchor] = target.split("#");
    // Made pages name documents by their paths in the repository.
    const folder = this.#page.from.startsWith("made:") ? "" : dirname(this.#page.from);
    const file = path === "" ? this.#page.from : normalize(join(folder, path)).replace(/\/$/, "");
    const page = [...this.#texts.keys()].find(
      ({ from }) => from === file || (file === RUNBOOKS && from === "made:alerts"),
    );
    if (page !== undefined) return this.#toPage(page, { target, anchor });
    const place = join(ROOT, file);
    if (!existsSync(place)) {
      this.dead.push(`${this.#page.from}: ${target}`);
      return target;
    }
    if (/\.(png|svg)$/.test(file)) return `/${file}`;
    const kind = statSync(place).isDirectory() ? "tree" : "blob";
    return `${REPOSITORY}/${kind}/main/${file}${anchor === undefined ? "" : `#${anchor}`}`;
  }

  #toPage(page: Page, { target, anchor }: { target: string; anchor: string | undefined }): string {
    if (anchor === undefined) return `/${page.to}.md`;
    if (!anchors(this.#texts.get(page)!).has(anchor)) this.dead.push(`${this.#page.from}: ${target}`);
    return page === this.#page ? `#${anchor}` : `/${page.to}.md#${anchor}`;
  }
}
