/** The documentation's site, as `npm run docs:site` builds it, in a real Chromium: on a phone's and on a desk's width. */
import { execFile } from "node:child_process";
import { existsSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";
import { chromium, type Browser, type Page, type Route } from "playwright-core";
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { GROUPS } from "../../docs/site/pages.ts";

const CHROMIUM = ["/usr/bin/chromium", "/usr/bin/chromium-browser"].find((path) => existsSync(path));
const ROOT = join(import.meta.dirname, "../..");
const ADDRESS = "http://site.test";
const PAGES = GROUPS.flatMap(({ pages }) => pages);

if (CHROMIUM === undefined && process.env["CI"] === "true") throw new Error("chromium is not installed");

/** Answers from the folder without a network: one that changes on this host would break a page that is loading. */
async function answer(route: Route, folder: string): Promise<void> {
  const path = new URL(route.request().url()).pathname;
  const file = join(folder, path === "/" ? "index.html" : path);
  await route.fulfill(existsSync(file) ? { path: file } : { status: 404 });
}

describe.skipIf(CHROMIUM === undefined)("the documentation's site", () => {
  const folder = mkdtempSync(join(tmpdir(), "vmlet-site-"));
  let browser: Browser;

  beforeAll(async () => {
    await promisify(execFile)(process.execPath, ["docs/site/build.ts", folder], { cwd: ROOT });
    // The sandbox needs a user other than root; what is shown is our own page.
    browser = await chromium.launch({ executablePath: CHROMIUM!, args: ["--no-sandbox"] });
  }, 600_000);
  afterAll(async () => {
    await browser?.close();
    rmSync(folder, { recursive: true });
  });

  describe.each([
    { width: 390, height: 844, isNarrow: true },
    { width: 1360, height: 880, isNarrow: false },
  ])("$width pixels wide", ({ width, height, isNarrow }) => {
    let page: Page;
    let complaints: string[];

    beforeEach(async () => {
      complaints = [];
      const context = await browser.newContext({ viewport: { width, height } });
      await context.route("**/*", (route) => answer(route, folder));
      page = await context.newPage();
      page.on("pageerror", ({ message }) => complaints.push(message));
      page.on("console", (message) => message.type() === "error" && complaints.push(message.text()));
    });
    afterEach(async () => {
      await page.context().close();
      expect(complaints).toEqual([]);
    });

    /** The page is there and answers. */
    const open = async (to: string) => {
      await page.goto(`${ADDRESS}/${to === "index" ? "" : `${to}.html`}`);
      await page.locator("main h1").waitFor();
      await page.waitForFunction("document.querySelector('#app').__vue_app__ !== undefined");
    };

    test.each(PAGES)("$to does not scroll sideways", async ({ to }) => {
      await open(to);
      expect(await page.evaluate("document.documentElement.scrollWidth")).toBeLessThanOrEqual(width);
    });

    test("the search finds nodeSelector, and leads to a page that speaks of it", async () => {
      await open("index");
      await page.locator(".DocSearch-Button").click();
      await page.locator(".VPLocalSearchBox input").fill("nodeSelector");
      await page.locator(".VPLocalSearchBox .result").first().click();
      await page.locator(".VPLocalSearchBox").waitFor({ state: "detached" });
      await expect.poll(() => page.locator("main").innerText()).toContain("nodeSelector");
    });

    test("the sidebar leads to another page", async () => {
      await open("index");
      if (isNarrow) await page.locator(".VPLocalNav .menu").click();
      await page.locator(".VPSidebar").getByRole("link", { name: "Quickstarts" }).click();
      await expect.poll(() => page.locator("main h1").innerText()).toContain("Quickstarts");
      expect(page.url()).toBe(`${ADDRESS}/quickstarts.html`);
    });

    test("the plots are drawn", async () => {
      await open("performance");
      const sizes = await page
        .locator(".plot svg")
        .evaluateAll((all) => all.map((svg) => svg.getBoundingClientRect().width));
      expect(sizes.length).toBe(5);
      expect(Math.min(...sizes)).toBeGreaterThan(200);
    });
  });
});
