/** What VitePress is told: the sidebar, the search, and that headings are named as on GitHub. */
import { allPages } from "./fill.ts";
import { slug } from "./markdown.ts";
import { GROUPS, type Page } from "./pages.ts";
import { PLOT } from "./plots.ts";

/** Code scrolls by itself, as tables do, and long names break: no page is wider than a phone. */
const STYLE = `
.vp-doc pre { overflow-x: auto; }
.vp-doc code, .vp-doc p, .vp-doc li, .vp-doc h2, .vp-doc h3 { overflow-wrap: anywhere; }
.plot { max-width: 560px; margin: 16px 0; }`;

type Rule = (
  ...args: [tokens: readonly { info: string; content: string }[], index: number, ...others: unknown[]]
) => string;

/** Of markdown-it what is changed here. */
interface Markdown {
  renderer: { rules: { fence?: Rule; text?: Rule } };
}

const item = ({ title, to }: Page) => ({ text: title, link: to === "index" ? "/" : `/${to}` });

export const config = {
  title: "vmlet",
  description: "Turns any HTTP VM API into a Kubernetes node",
  srcDir: ".pages",
  outDir: "dist",
  cacheDir: ".cache",
  // Where it is served below a path, as GitHub's pages are.
  base: process.env["VMLET_SITE_BASE"] ?? "/",
  head: [["style", {}, STYLE]],
  // Links between pages are held by `fill.ts` already, by anchors too; what VitePress finds besides is an error as well.
  ignoreDeadLinks: false,
  themeConfig: {
    search: { provider: "local" },
    outline: [2, 3],
    sidebar: [
      ...GROUPS.map(({ title, pages }) => ({ text: title, collapsed: false, items: pages.map(item) })),
      {
        text: "Runbooks",
        collapsed: true,
        items: allPages()
          .filter(({ to }) => to.startsWith("runbooks/"))
          .map(item),
      },
    ],
    socialLinks: [{ icon: "github", link: "https://github.com/vmlet/vmlet" }],
  },
  markdown: {
    // A document's <NAME> is text, here as on GitHub.
    html: false,
    linkify: false,
    // Nor are {id} and such attributes of a heading.
    attrs: { disable: true },
    anchor: { slugify: slug },
    config(md: Markdown) {
      const { fence, text } = md.renderer.rules;
      // Braces are Vue's: not those of a document.
      md.renderer.rules.text = (...args) => text!(...args).replaceAll("{{", "&#123;&#123;");
      md.renderer.rules.fence = (...args) => {
        const token = args[0][args[1]]!;
        return token.info === PLOT ? `<div class="plot">${token.content}</div>` : fence!(...args);
      };
    },
  },
};
