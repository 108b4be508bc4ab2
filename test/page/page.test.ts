/** The page of `vmlet ui` in a real Chromium. The pictures of the documentation are made here. */
import { existsSync, mkdirSync } from "node:fs";
import { join } from "node:path";
import { chromium, type Browser, type Page } from "playwright-core";
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { openStage, type Stage } from "./cluster.ts";

const CHROMIUM = ["/usr/bin/chromium", "/usr/bin/chromium-browser"].find((path) => existsSync(path));
const PICTURES = join(import.meta.dirname, "../../docs/pictures");
/** With it the pictures are written again; they differ with every run, by ages and curves. */
const keepsPictures = process.env["VMLET_PICTURES"] === "1";

if (CHROMIUM === undefined && process.env["CI"] === "true") throw new Error("chromium is not installed");

/** Counts what keeps the page from answering for 50 ms or more, and how much of the page changes at once. */
const watchTasks = `{
  window.tasks = { long: 0, longest: 0, frames: 0, mostChanged: 0 };
  new MutationObserver(({ length }) => {
    tasks.mostChanged = Math.max(tasks.mostChanged, length);
  }).observe(document.body, { subtree: true, childList: true, attributes: true, characterData: true });
  new PerformanceObserver((list) => {
    for (const { duration } of list.getEntries()) {
      tasks.long++;
      tasks.longest = Math.max(tasks.longest, Math.round(duration));
    }
  }).observe({ type: "longtask" });
  const count = () => { tasks.frames++; requestAnimationFrame(count); };
  requestAnimationFrame(count);
}`;

describe.skipIf(CHROMIUM === undefined)("the page", () => {
  let browser: Browser;
  let stage: Stage;
  let page: Page;
  /** What the page complained of, its policy's refusals among it. */
  let complaints: string[];
  /** A complaint that belongs to the test. */
  let expected: string;

  beforeAll(async () => {
    // The sandbox needs a user other than root; what is shown is our own page.
    browser = await chromium.launch({ executablePath: CHROMIUM!, args: ["--no-sandbox"] });
  });
  afterAll(() => browser?.close());
  beforeEach(async () => {
    stage = await openStage();
    complaints = [];
    expected = "none";
  });
  afterEach(async () => {
    await page?.context().close();
    await stage[Symbol.asyncDispose]();
    expect(complaints.filter((text) => !text.includes(expected))).toEqual([]);
  });

  async function open(options: { dark?: boolean; width?: number; height?: number; url?: string } = {}): Promise<void> {
    const { dark = false, width = 1360, height = 880, url = stage.url } = options;
    const context = await browser.newContext({
      viewport: { width, height },
      colorScheme: dark ? "dark" : "light",
    });
    page = await context.newPage();
    page.on("pageerror", ({ message }) => complaints.push(message));
    page.on("console", (message) => message.type() === "error" && complaints.push(message.text()));
    await page.goto(url);
  }
  const isComplete = () => page.waitForSelector("html[data-synced=true]");
  const row = (name: string) => page.getByRole("row").filter({ hasText: name });
  async function picture(name: string): Promise<void> {
    const bytes = await page.screenshot();
    expect(bytes.length).toBeGreaterThan(10_000);
    if (!keepsPictures) return;
    mkdirSync(PICTURES, { recursive: true });
    await page.screenshot({ path: join(PICTURES, `${name}.png`) });
  }

  function setBurst(): void {
    const annotations = { "vmlet.dev/price": "0.031 0.004 USD" };
    stage.node("burst-0", { annotations });
    stage.node("burst-1", { annotations });
    const message = "the machine backend does not answer: connect ECONNREFUSED 10.2.0.7:8443";
    stage.node("edge-0", { annotations, backend: { status: "False", reason: "BackendUnavailable", message } });
    for (let index = 0; index < 120; index++) {
      const ago = 20 + ((index * 37) % 240);
      const ran = 25 + ((index * 53) % 60);
      const phase =
        ago - 4 > ran ? (index % 29 === 0 ? "Failed" : "Succeeded") : index % 9 === 0 ? "Pending" : "Running";
      const name = `render-${String(index).padStart(3, "0")}`;
      stage.pod(name, { node: `burst-${index % 2}`, phase, ago, ran });
    }
    stage.pod("render-120", { node: "burst-1", ago: 15 });
  }

  test("shows nodes with their backends' health, and pods as machines", async () => {
    setBurst();
    await open();
    await isComplete();
    await expect
      .poll(() => page.getByRole("button", { name: /burst-0/ }).textContent())
      .toContain("Ready · backend answers");
    await expect.poll(() => page.getByRole("button", { name: /edge-0/ }).textContent()).toContain("ECONNREFUSED");
    const cells = await row("render-120").textContent();
    expect(cells).toContain("rack-4-u12");
    expect(cells).toContain("2 cpu · 4 Gi");
    expect(cells).toContain("$");
    await picture("page-light");
  });

  test("is dark for those who like it so, and shows one machine beside the others", async () => {
    setBurst();
    await open({ dark: true });
    await isComplete();
    await row("render-120").click();
    await expect.poll(() => page.getByRole("dialog").textContent()).toContain("m-render-120");
    await picture("page-dark");
  });

  test("fits on a phone", async () => {
    setBurst();
    await open({ width: 390, height: 844 });
    await isComplete();
    const wide = await page.evaluate("document.documentElement.scrollWidth");
    expect(wide).toBe(390);
    await picture("page-phone");
  });

  test("follows the cluster while it changes", async () => {
    stage.node("burst-0");
    await open();
    await isComplete();
    await expect.poll(() => page.locator("#pods").textContent()).toContain("No machine runs on these nodes");
    stage.pod("comes", { node: "burst-0", phase: "Pending" });
    await expect.poll(() => row("comes").textContent()).toContain("ContainerCreating");
    stage.pod("comes", { node: "burst-0", phase: "Running" });
    await expect.poll(() => row("comes").textContent()).toContain("Running");
    stage.remove("comes");
    await expect.poll(() => row("comes").count()).toBe(0);
  });

  test("holds no more rows than are in view, of ten thousand machines, and follows when a thousand change at once", async () => {
    stage.node("burst-0");
    for (let index = 0; index < 10_000; index++) stage.pod(`m-${index}`, { node: "burst-0", ago: index + 1 });
    await open();
    await isComplete();
    await expect.poll(() => page.locator("#phases").textContent()).toContain("All10,000");
    expect(await page.locator(".pod").count()).toBeLessThan(60);
    await page.locator(".grid").focus();
    await page.keyboard.press("End");
    await expect.poll(() => row("m-9999").count()).toBe(1);
    for (let index = 0; index < 1_000; index++)
      stage.pod(`m-${index}`, { node: "burst-0", phase: "Succeeded", ago: 99 });
    await expect.poll(() => page.locator("#totals").textContent(), { timeout: 20_000 }).toContain("1,000✓Succeeded");
    expect(await page.locator(".pod").count()).toBeLessThan(60);
    await page.keyboard.press("Home");
    await expect.poll(() => page.locator("[aria-selected=true]").getAttribute("aria-rowindex")).toBe("2");
  });

  test("goes on without a stutter, of ten thousand machines, while one changes after the other", async () => {
    stage.node("burst-0");
    for (let index = 0; index < 10_000; index++) stage.pod(`m-${index}`, { node: "burst-0", ago: index + 1 });
    await open();
    await isComplete();
    await expect.poll(() => page.locator("#phases").textContent()).toContain("All10,000");
    // The dearest order: names are compared as people count.
    await page.getByRole("button", { name: "Machine", exact: true }).click();
    await page.evaluate(watchTasks);
    await page.locator(".grid").focus();
    // While machines end, somebody looks through them.
    for (let step = 0; step < 40; step++) {
      for (let index = step * 25; index < (step + 1) * 25; index++)
        stage.pod(`m-${index}`, { node: "burst-0", phase: "Succeeded", ago: 99 });
      await page.keyboard.press("PageDown");
    }
    await expect.poll(() => page.locator("#totals").textContent(), { timeout: 20_000 }).toContain("1,000✓Succeeded");
    const tasks = await page.evaluate<{ long: number; longest: number; frames: number; mostChanged: number }>("tasks");
    console.log(`long tasks: ${tasks.long} (the longest ${tasks.longest} ms), in ${tasks.frames} frames`);
    // As much as there is in view, however many machines there are: how long that takes is the host's.
    expect(tasks.mostChanged).toBeGreaterThan(0);
    expect(tasks.mostChanged).toBeLessThan(1_000);
    expect(await page.locator(".pod").count()).toBeLessThan(60);
  });

  test("is worked by the keyboard alone", async () => {
    setBurst();
    await open();
    await isComplete();
    await page.keyboard.press("/");
    await page.keyboard.type("render-007");
    await expect.poll(() => page.locator(".pod").count()).toBe(1);
    await page.keyboard.press("Tab");
    while ((await page.evaluate("document.activeElement.getAttribute('role')")) !== "grid")
      await page.keyboard.press("Tab");
    await page.keyboard.press("ArrowDown");
    await page.keyboard.press("Enter");
    await expect.poll(() => page.getByRole("dialog").textContent()).toContain("render-007");
    await page.keyboard.press("Escape");
    await expect.poll(() => page.getByRole("dialog").count()).toBe(0);
    expect(await page.evaluate("document.activeElement.getAttribute('role')")).toBe("grid");
  });

  test("has a shape and a word for each state, beside its colour", async () => {
    stage.node("burst-0");
    for (const phase of ["Pending", "Running", "Succeeded", "Failed"])
      stage.pod(phase.toLowerCase(), { node: "burst-0", phase });
    await open();
    await isComplete();
    const marks = await page.locator(".pod .mark").allTextContents();
    expect(new Set(marks)).toEqual(new Set(["○", "●", "✓", "✕"]));
    await expect.poll(() => page.locator("canvas").getAttribute("aria-label")).toContain("1 running");
  });

  test("shows what a tenant writes as text, whatever it is", async () => {
    const evil = `<img src=x onerror="document.title='owned'"><script>document.title="owned"</script>\u001b[31m\u202egnp`;
    stage.node("burst-0");
    stage.pod("evil", {
      node: "burst-0",
      phase: "Pending",
      more: { status: { phase: "Pending", reason: evil, message: evil } },
    });
    await open();
    await isComplete();
    await row("evil").click();
    await expect.poll(() => page.getByRole("dialog").textContent()).toContain("<img src=x onerror=");
    const dialog = await page.getByRole("dialog").textContent();
    expect(dialog).not.toContain("\u001b");
    expect(dialog).not.toContain("\u202e");
    expect(await page.locator("#pods img, #details img, #pods script, #details script").count()).toBe(0);
    expect(await page.title()).not.toContain("owned");
  });

  test("keeps the token out of the address and its history", async () => {
    await open();
    await isComplete();
    expect(page.url()).toBe(new URL("/", stage.url).href);
    await page.reload();
    await isComplete();
  });

  test("says that an address without the right token is none", async () => {
    // The browser logs what was refused.
    expected = "status of 401";
    await open({ url: stage.url.replace(/token=.*/, "token=wrong") });
    await expect.poll(() => page.getByRole("alert").textContent()).toContain("vmlet ui");
  });
});
