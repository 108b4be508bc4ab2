/** The documentation's site before it is built: its pages, where their links lead, and what is drawn. */
import { globSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import { allPages, render, ROOT } from "../../docs/site/fill.ts";
import { machineApi } from "../../docs/site/machine-api.ts";
import { anchors, slug, withLinks, withoutMarkup } from "../../docs/site/markdown.ts";
import type { Page } from "../../docs/site/pages.ts";
import { drawn, plots, withPlots } from "../../docs/site/plots.ts";

const read = (path: string) => readFileSync(join(ROOT, path), "utf8");

describe("links", () => {
  const page = { title: "Page", from: "docs/page.md", to: "page" };
  const rendered = (text: string) => {
    const read = ({ from }: Page) => (from === page.from ? text : "## The protocol\n");
    return render([page, { title: "Architecture", from: "ARCHITECTURE.md", to: "architecture" }], read).get("page");
  };

  test("lead to the page of a document, and to the heading that it has there", () => {
    expect(rendered("[it](../ARCHITECTURE.md#the-protocol)")).toBe("[it](/architecture.md#the-protocol)");
  });

  test("lead to the repository where the site has no such page", () => {
    expect(rendered("[it](../package.json)")).toBe("[it](https://github.com/vmlet/vmlet/blob/main/package.json)");
  });

  test("of code are left alone", () => {
    const text = "```\n[it](nowhere.md)\n```\n";
    expect(rendered(text)).toBe(text);
  });

  test.each(["[it](nowhere.md)", "[it](../ARCHITECTURE.md#no-such-heading)", "[it](#no-such-heading)"])(
    "that lead nowhere are an error: %s",
    (text) => expect(() => rendered(text)).toThrow(/lead nowhere:\n.*page\.md: /),
  );

  test("of every page of the site lead somewhere", () => {
    expect(render().size).toBe(allPages().length);
  });
});

test("headings are called as on GitHub, those of one name by numbers", () => {
  expect(slug("`oci` or `cri`, Side by side: 2")).toBe("oci-or-cri-side-by-side-2");
  expect([...anchors("# A\n## A\n## [B](c.md)\n```\n# no\n```\n")]).toEqual(["a", "a-1", "b"]);
});

test("markup that only GitHub understands is a picture, or gone", () => {
  const picture = '<picture>\n<source srcset="d.png" />\n<img src="l.png" alt="A page" />\n</picture>';
  expect(withoutMarkup(`<!-- note -->${picture} <NAME>`)).toBe("![A page](l.png) <NAME>");
});

test("links are replaced in text, pictures' among them", () => {
  expect(withLinks("[a](b) ![c](d)", (target) => target.toUpperCase())).toBe("[a](B) ![c](D)");
});

test("the Machine API's page has every call and every object, with its fields", () => {
  const page = machineApi(read("src/provider/contract/openapi.yaml"));
  expect(page).toContain("### PUT /v1/machines/{id}");
  expect(page).toMatch(/### MachineSpec[\s\S]*\| `containers` \| list of \[ContainerSpec\]\(#containerspec\) \|/);
});

describe("plots", () => {
  const bench = read("test/bench/README.md");

  test("hold the figures of the bench's tables", () => {
    const table = "## Newest run\n\n| | kwok | first | second | HTTP | third |\n|---|---|---|---|---|---|\n";
    const rows = ["bound to Running", "deletion"].map(
      (name) => `| ${name} | 425, 441, 388/s | 258/s | 226/s | 9/s | 241/s |`,
    );
    const head = "| pods | to Running | deletion | CPU a pod | memory |\n|---|---|---|---|---|\n";
    const found = plots(
      `${table}${rows.join("\n")}\n\n${head}| 1,000 | 121/s | 99/s | 2.86 / 2.65 ms | 100 / 152 MiB |\n`,
    );
    expect(found["rates"]!.series.map(({ values }) => values)).toEqual([[121], [99]]);
    expect(found["cpu"]!.series.map(({ values }) => values)).toEqual([[2.86], [2.65]]);
    expect(found["memory"]).toMatchObject({ labels: ["1,000"], series: [{ values: [100] }, { values: [152] }] });
    expect(found["start-beside-kwok"]!.series.map(({ values }) => values)).toEqual([
      [258, 226, 241],
      [425, 441, 388],
    ]);
  });

  test("can all be drawn from the newest tables", () => {
    for (const plot of Object.values(plots(bench))) expect(drawn(plot)).toMatch(/^<svg [\s\S]*<\/svg>$/);
  });

  test("are not drawn with a figure missing, or from a table that is not there", () => {
    expect(() => drawn({ ...plots(bench)["cpu"]!, labels: ["1"] })).toThrow("needs a number for each of 1");
    expect(() => plots("no table")).toThrow("there is no table");
    expect(() => withPlots("```plot\nnothing\n```")).toThrow("no plot is called nothing");
  });
});

test("the page of annotations names all that the sources have, and nothing else", () => {
  const name = /(?<![\w.])(?:[a-z]+\.)*vmlet\.dev\/(?!v1\b)[a-z-]+/g;
  const sources = globSync("src/**/*.ts", { cwd: ROOT, exclude: ["**/kit/**", "**/*.gen.ts"] });
  const inSources = sources.flatMap((file) => [
    ...read(file).matchAll(/(?<=")[a-z.]*vmlet\.dev\/(?!v1\b)[a-z-]+(?=")/g),
  ]);
  const onPage = [...read("docs/annotations.md").matchAll(name)].flat();
  expect(new Set(onPage)).toEqual(new Set(inSources.flat()));
});
