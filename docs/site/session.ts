/**
 * `npm run docs:session`: records what a newcomer sees, in docs/pictures. A terminal runs `vmlet dev`, a second one types
 * real kubectl commands; what both print is written down as it comes (session.cast, asciicast v2), and drawn from that
 * (session.svg). Nothing is added, changed or left out but the ends of both terminals.
 */
import { mkdtempSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { spawn } from "@lydell/node-pty";
import { kubectlBinary } from "../../test/e2e/harness/binaries.ts";
import { COMMANDS, FIRST } from "./session-commands.ts";
import { drawSession, parseRecording } from "./session-picture.ts";

const ROOT = join(import.meta.dirname, "../..");
const PICTURES = join(ROOT, "docs/pictures");
const SIZE = { cols: 104, rows: 24 };
const PROMPT = "$ ";
/** The last line of what `vmlet dev` prints when all is up. */
const UP = "Ctrl-C stops everything.\r\n";
/** For a command, on a busy machine. */
const PATIENCE_MS = 180_000;
/** The state's folder, which is printed: the same for whoever records. */
const STATE = "/tmp/vmlet-session";

type Event = readonly [time: number, kind: "o", text: string];

const events: Event[] = [];
const begun = performance.now();

/** A shell whose output is recorded. */
function shell(bin: string) {
  const terminal = spawn("bash", ["--norc", "--noprofile"], {
    ...SIZE,
    cwd: ROOT,
    env: {
      PATH: `${bin}:${process.env["PATH"]}`,
      HOME: STATE,
      PS1: PROMPT,
      TERM: "dumb",
      KUBECACHEDIR: `${bin}/cache`,
    },
  });
  let printed = "";
  let wake = () => {};
  let isOver = false;
  terminal.onData((text) => {
    printed += text;
    wake();
    if (isOver) return;
    events.push([Number(((performance.now() - begun) / 1000).toFixed(3)), "o", text]);
  });
  /** Waits until what it has printed since the last time ends so, or, not the end, has this line. */
  const until = async (what: string, where: "end" | "anywhere") => {
    const deadline = performance.now() + PATIENCE_MS;
    while (where === "end" ? !printed.endsWith(what) : !printed.includes(what)) {
      if (performance.now() > deadline)
        throw new Error(`no "${what}" within ${PATIENCE_MS / 1000} s after:\n${printed}`);
      const { promise, resolve } = Promise.withResolvers<void>();
      wake = resolve;
      const timer = setTimeout(resolve, 1000);
      await promise;
      clearTimeout(timer);
    }
    printed = "";
  };
  return {
    until,
    type: (line: string) => terminal.write(`${line}\n`),
    press: (key: string) => terminal.write(key),
    /** From now on nothing is recorded. */
    stopRecording: () => void (isOver = true),
    end: () => terminal.kill(),
  };
}

const bin = mkdtempSync(join(tmpdir(), "vmlet-session-bin-"));
symlinkSync(await kubectlBinary(), join(bin, "kubectl"));
symlinkSync(process.execPath, join(bin, "node"));
rmSync(STATE, { recursive: true, force: true });
const cluster = shell(bin);
try {
  await cluster.until(PROMPT, "end");
  cluster.type(FIRST);
  await cluster.until(UP, "anywhere");
  const user = shell(bin);
  try {
    await user.until(PROMPT, "end");
    for (const command of COMMANDS) {
      user.type(command);
      await user.until(`\n${PROMPT}`, "end");
    }
    user.stopRecording();
  } finally {
    user.end();
  }
  cluster.stopRecording();
  const header = { version: 2, width: SIZE.cols, height: SIZE.rows, title: "vmlet dev, and kubectl" };
  const cast = `${[header, ...events].map((each) => JSON.stringify(each)).join("\n")}\n`;
  writeFileSync(join(PICTURES, "session.cast"), cast);
  writeFileSync(join(PICTURES, "session.svg"), drawSession(parseRecording(cast)));
} finally {
  // As its user ends it: it takes its machines with it.
  cluster.press("\x03");
  await cluster.until(PROMPT, "anywhere").catch(() => {});
  cluster.end();
  rmSync(bin, { recursive: true });
}
process.exit();
