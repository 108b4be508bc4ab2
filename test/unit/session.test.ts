/** The recorded terminal session: what its picture shows is what was printed, and what was typed is what the script types. */
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { COMMANDS, FIRST } from "../../docs/site/session-commands.ts";
import { drawSession, linesOf, parseRecording } from "../../docs/site/session-picture.ts";

const pictures = join(import.meta.dirname, "../../docs/pictures");
const cast = readFileSync(join(pictures, "session.cast"), "utf8");
const recorded = (...output: [number, string][]) => ({ width: 80, height: 2, output });

test("the picture is drawn from the recording that lies beside it", () => {
  expect(readFileSync(join(pictures, "session.svg"), "utf8")).toBe(drawSession(parseRecording(cast)));
});

test("the recording is of the commands that the script types, and each of them printed no error", () => {
  const lines = linesOf(parseRecording(cast)).map(({ text }) => text);
  const typed = lines.filter((line) => line.startsWith("$ ")).map((line) => line.slice(2));
  expect(typed.filter((line) => line !== "")).toEqual([FIRST, ...COMMANDS]);
  expect(lines.filter((line) => /\berror\b|not found/i.test(line))).toEqual([]);
});

test("a line comes when its first character did, after pauses that are not told in full", () => {
  expect(linesOf(recorded([0, "a"], [1, "b\r\n"], [61, "c\r\n"]))).toEqual([
    { text: "ab", at: 0 },
    { text: "c", at: 3 },
  ]);
});

test("what was wiped away is not there in the end, nor are colours", () => {
  const [line, ...others] = linesOf(
    recorded([0, "\r\u001b[K\u001b[2mStarting (2 s)\u001b[0m\r"], [1, "\r\u001b[KUp\r\n"]),
  );
  expect(line!.text).toBe("Up");
  expect(others).toEqual([]);
});

test("what was printed becomes text, and never markup", () => {
  const drawn = drawSession(recorded([0, '</text><script>alert("&")</script>\r\n']));
  expect(drawn).toContain('&lt;/text&gt;&lt;script&gt;alert("&amp;")&lt;/script&gt;</text>');
});

test("it scrolls by the lines that the terminal has no room for, and without motion shows the end", () => {
  const drawn = drawSession(recorded([0, "a\r\nb\r\nc\r\n"]));
  expect(drawn).toContain(".all{transform:translateY(-18px)}");
  expect(drawn).toContain("prefers-reduced-motion");
});

test("what is no asciicast v2 is refused", () => {
  expect(() => parseRecording('{"version":1}\n')).toThrow(/asciicast v2/);
});
