/** Logs and terminals of the page in a real Chromium, of containers that run: worked by the keyboard alone. */
import { existsSync } from "node:fs";
import { chromium, type Browser, type Page } from "playwright-core";
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { openLive, type Live } from "./live.ts";

const CHROMIUM = ["/usr/bin/chromium", "/usr/bin/chromium-browser"].find((path) => existsSync(path));
const PATIENCE = { timeout: 20_000 };
/** Until it is stopped. */
const FOREVER = "exec sleep 1000";

if (CHROMIUM === undefined && process.env["CI"] === "true") throw new Error("chromium is not installed");

describe.skipIf(CHROMIUM === undefined)("the page, of a machine that runs", () => {
  let browser: Browser;
  let live: Live;
  let page: Page;
  let complaints: string[];

  beforeAll(async () => {
    browser = await chromium.launch({ executablePath: CHROMIUM!, args: ["--no-sandbox"] });
  });
  afterAll(() => browser?.close());
  beforeEach(async () => {
    live = await openLive();
    complaints = [];
  });
  afterEach(async () => {
    await page?.context().close();
    await live[Symbol.asyncDispose]();
    expect(complaints).toEqual([]);
  });

  /** Opens the page, the only machine there is, and a tab of it. */
  async function open(tab: "Log" | "Terminal"): Promise<void> {
    page = await (await browser.newContext({ viewport: { width: 1360, height: 880 } })).newPage();
    page.on("pageerror", ({ message }) => complaints.push(message));
    page.on("console", (message) => message.type() === "error" && complaints.push(message.text()));
    await page.goto(live.url);
    await page.waitForSelector("html[data-synced=true]");
    await tabTo("[role=grid]");
    await page.keyboard.press("ArrowDown");
    await page.keyboard.press("Enter");
    await expect.poll(() => page.getByRole("dialog").count()).toBe(1);
    await tabTo("[role=tab]");
    while ((await focused("textContent")) !== tab) await page.keyboard.press("ArrowRight");
  }
  const focused = (what: string) => page.evaluate<string | null>(`document.activeElement.${what}`);
  async function tabTo(selector: string): Promise<void> {
    for (let steps = 0; steps < 50; steps++) {
      if (await page.evaluate<boolean>(`document.activeElement.matches(${JSON.stringify(selector)})`)) return;
      await page.keyboard.press("Tab");
    }
    throw new Error(`the keyboard does not get to ${selector}`);
  }
  const log = () => page.getByRole("log").textContent();
  const note = () => page.locator(".choice .note").textContent();
  const screen = () => page.locator(".xterm-rows").textContent();

  test("shows a log, and what is written later", async () => {
    await live.run("p", { main: "i=0; while true; do echo line $i; i=$((i+1)); sleep 0.1; done" });
    await open("Log");
    await expect.poll(log, PATIENCE).toContain("line 0\n");
    const seen = (await log())!.trim().split("\n").length;
    await expect.poll(log, PATIENCE).toContain(`line ${seen + 5}\n`);
    expect(await note()).toBe("following");
  });

  test("shows of a log only text, whatever a container writes", async () => {
    await live.run("p", {
      main: `printf '\\033[2J\\033]0;owned\\007<img src=x onerror="document.title=1">\\n'; ${FOREVER}`,
    });
    await open("Log");
    await expect.poll(log, PATIENCE).toContain('<img src=x onerror="document.title=1">');
    expect(await log()).not.toContain("\u001b");
    expect(await page.locator("#details img").count()).toBe(0);
    expect(await page.title()).not.toMatch(/owned|^1$/);
  });

  test("shows the log of the container that is chosen", async () => {
    await live.run("p", { one: `echo of the one; ${FOREVER}`, two: `echo of the other; ${FOREVER}` });
    await open("Log");
    await expect.poll(log, PATIENCE).toContain("of the one");
    await tabTo("select");
    await page.keyboard.press("ArrowDown");
    await expect.poll(log, PATIENCE).toBe("of the other\n");
  });

  test("says when a log has ended", async () => {
    await live.run("p", { main: "sleep 1; echo over", other: FOREVER });
    await open("Log");
    await tabTo("select");
    await page.keyboard.press("m");
    await expect.poll(log, PATIENCE).toBe("over\n");
    await expect.poll(note, PATIENCE).toBe("ended");
  });

  test("has a terminal: a shell that is typed into, as wide as it is shown, until it ends", async () => {
    await live.run("p", { main: FOREVER });
    await open("Terminal");
    await expect.poll(note, PATIENCE).toBe("connected");
    // It has the keyboard at once.
    await page.keyboard.type("echo $((6*7))-answers\n");
    await expect.poll(screen, PATIENCE).toContain("42-answers");
    const rows = await page.locator(".xterm-rows > div").count();
    await page.keyboard.type("echo size: $(stty size)\n");
    await expect.poll(screen, PATIENCE).toMatch(new RegExp(`size: ${rows} \\d+`));
    await page.setViewportSize({ width: 1000, height: 500 });
    await expect.poll(() => page.locator(".xterm-rows > div").count(), PATIENCE).toBeLessThan(rows);
    const fewer = await page.locator(".xterm-rows > div").count();
    await page.keyboard.type("clear; echo now: $(stty size)\n");
    await expect.poll(screen, PATIENCE).toMatch(new RegExp(`now: ${fewer} \\d+`));
    await page.keyboard.type("exit\n");
    await expect.poll(note, PATIENCE).toBe("The shell has ended");
  });

  test("leaves Escape and Ctrl-C to the program in the terminal", async () => {
    await live.run("p", { main: FOREVER });
    await open("Terminal");
    await expect.poll(note, PATIENCE).toBe("connected");
    await page.keyboard.type("sleep 1000; echo woken\n");
    await page.keyboard.press("Escape");
    await page.keyboard.press("Control+c");
    await page.keyboard.type("echo still-$((1+1))-here\n");
    await expect.poll(screen, PATIENCE).toContain("still-2-here");
    expect(await page.getByRole("dialog").count()).toBe(1);
  });

  test("says why there is no terminal in a container that has ended", async () => {
    await live.run("p", { main: "true", other: FOREVER });
    await open("Log");
    await tabTo("select");
    await page.keyboard.press("m");
    await expect.poll(note, PATIENCE).toBe("nothing was written");
    await tabTo("[role=tab]");
    await page.keyboard.press("ArrowRight");
    await expect.poll(note, PATIENCE).toContain("main");
  });
});
