import { beforeEach, describe, expect, test } from "vitest";
import { Progress } from "../../../src/cli/progress.ts";
import { pullsOf, showPulls } from "../../../src/cli/pull-progress.ts";
import type { Machine } from "../../../src/provider/machine.ts";
import { VirtualClock } from "../../support/virtual-clock.ts";

let clock: VirtualClock;
let written: string;
beforeEach(() => {
  clock = new VirtualClock();
  written = "";
});

function progress(rest: { isTerminal?: boolean; hasColor?: boolean; columns?: number } = {}) {
  const { isTerminal = true, hasColor = false, columns = 80 } = rest;
  const write = (text: string) => void (written += text);
  return new Progress({ write, isTerminal, hasColor, columns: () => columns, clock });
}
/** What a terminal of one line shows. */
const screen = () =>
  written.split("\u001b[K").at(-1)!.replaceAll("\u001b[2m", "").replaceAll("\u001b[0m", "").replace(/\r$/, "");

describe("on a terminal", () => {
  test("what is done within two seconds is not shown", async () => {
    const end = progress().begin("Working");
    await clock.advance(1_400);
    end();
    await clock.advance(10_000);
    expect(written).toBe("");
  });

  test("what takes longer is one line that counts the seconds, and vanishes", async () => {
    const end = progress().begin("Working");
    await clock.advance(3_100);
    expect(screen()).toBe("Working (3 s)");
    end.tell("1 of 2");
    await clock.advance(1_000);
    expect(screen()).toBe("Working: 1 of 2 (4 s)");
    end();
    expect(screen()).toBe("");
    expect(written).not.toContain("\n");
  });

  test("what is printed meanwhile stands in lines of its own", async () => {
    const shown = progress();
    shown.begin("Working");
    await clock.advance(3_000);
    shown.above(() => (written += "a result\n"));
    expect(screen()).toBe("a result\n");
    await clock.advance(1_000);
    expect(screen()).toBe("Working (4 s)");
  });

  test("the first of several stands for all", async () => {
    const shown = progress();
    const first = shown.begin("One");
    shown.begin("Two");
    await clock.advance(3_000);
    expect(screen()).toBe("One (3 s), and 1 more");
    first();
    await clock.advance(1_000);
    expect(screen()).toBe("Two (4 s)");
  });

  test("a line is never longer than the terminal is wide: one that is wrapped stays", async () => {
    progress({ columns: 20 }).begin("x".repeat(100));
    await clock.advance(3_000);
    expect(screen()).toBe("x".repeat(19));
  });

  test("what a backend says cannot move the cursor", async () => {
    progress().begin("Pulling \u001b[2Jevil");
    await clock.advance(3_000);
    expect(screen()).toContain("Pulling \\u001b[2Jevil");
  });

  test.each([
    [true, true],
    [false, false],
  ])("has colours: %s, when they are allowed: %s", async (expected, hasColor) => {
    progress({ hasColor }).begin("Working");
    await clock.advance(3_000);
    expect(written.includes("\u001b[2m")).toBe(expected);
  });

  test("work that fails is shown no more, and its error passed on", async () => {
    const failing = progress().of("Working", async () => {
      await clock.sleep(5_000);
      throw new Error("no");
    });
    const failed = expect(failing).rejects.toThrow("no");
    await clock.advance(6_000);
    await failed;
    expect(screen()).toBe("");
  });
});

describe("elsewhere", () => {
  test("is a line at two seconds, one each half minute, and one at the end", async () => {
    const end = progress({ isTerminal: false }).begin("Working");
    await clock.advance(40_000);
    end();
    expect(written).toBe("Working (2 s)\nWorking (32 s)\nWorking: done (40 s)\n");
  });

  test("what is done at once says nothing", async () => {
    const end = progress({ isTerminal: false }).begin("Working");
    await clock.advance(1_000);
    end();
    expect(written).toBe("");
  });
});

describe("images that are pulled", () => {
  type Notice = NonNullable<Machine["notices"]>[number];
  const notice = (seq: number, reason: string, container: string, image: string): Notice => ({
    ...{ at: "2026-01-01T00:00:00Z", type: "Normal", seq, reason, container },
    message: reason === "Pulling" ? `Pulling image "${image}"` : `Successfully pulled image "${image}" in 1s`,
  });
  const machine = (notices: Notice[], state = "starting") =>
    ({
      state,
      notices,
      containers: ["a", "b"].map((name) => ({ name, state: "waiting" })),
    }) as unknown as Machine;

  test("are those whose pull has begun and not ended", () => {
    const notices = [notice(3, "Pulled", "a", "x"), notice(1, "Pulling", "a", "x"), notice(2, "Pulling", "b", "y")];
    expect(pullsOf(machine(notices))).toEqual(["y"]);
  });

  test("are none of a machine that is over", () => {
    expect(pullsOf(machine([notice(1, "Pulling", "a", "x")], "failed"))).toEqual([]);
  });

  test("are shown while they last, each once however many pods wait for it", async () => {
    let machines = [1, 2].map(() => machine([notice(1, "Pulling", "a", "nginx")]));
    const stop = new AbortController();
    const showing = showPulls(() => Promise.resolve(machines), progress(), { clock, signal: stop.signal });
    await clock.advance(4_000);
    expect(screen()).toMatch(/^Pulling image nginx \(\d s\)$/);
    machines = [];
    await clock.advance(1_000);
    expect(screen()).toBe("");
    stop.abort();
    await showing;
  });
});
