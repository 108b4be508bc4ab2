/**
 * A recorded terminal session as a picture: an SVG that shows each line at the time when it was printed, and scrolls as
 * the terminal did. It needs no script and nothing from anywhere else; where nothing may move, it shows the end.
 */
import { stripVTControlCharacters } from "node:util";

/** asciicast v2: a header, then a line for each piece of output. */
export interface Recording {
  readonly width: number;
  readonly height: number;
  /** Seconds since the beginning, and what was printed then. */
  readonly output: readonly (readonly [time: number, text: string])[];
}

interface Line {
  text: string;
  /** When its first character came. */
  at: number;
}

const CHARACTER = 7.25;
const ROW = 18;
const MARGIN = 14;
/** For what nobody wants to wait for as long as it took. */
const LONGEST_PAUSE = 2;
/** How long its end stands before it may be watched again. */
const REST = 4;

/** Of a line that tells how long something takes already. */
const WIPE = "\u001b[K";

/** @throws Error where it is no asciicast v2 */
export function parseRecording(cast: string): Recording {
  const [header, ...events] = cast.trimEnd().split("\n");
  const { version, width, height } = JSON.parse(header ?? "{}") as Partial<Recording> & { version?: number };
  if (version !== 2 || width === undefined || height === undefined) throw new Error("no recording in asciicast v2");
  const output = events.map((line) => {
    const [time, , text] = JSON.parse(line) as [number, string, string];
    return [time, text] as const;
  });
  return { width, height, output };
}

/** The lines that were printed, as they are in the end: without colours, and without what was wiped away again. */
export function linesOf({ output }: Recording): Line[] {
  const lines: Line[] = [{ text: "", at: 0 }];
  let shown = 0;
  let before = 0;
  for (const [time, text] of output) {
    shown += Math.min(time - before, LONGEST_PAUSE);
    before = time;
    for (const [index, part] of text.replaceAll("\r", "").split("\n").entries()) {
      if (index > 0) lines.push({ text: "", at: shown });
      const line = lines.at(-1)!;
      const wiped = part.lastIndexOf(WIPE);
      if (wiped >= 0) line.text = "";
      if (line.text === "") line.at = shown;
      line.text += stripVTControlCharacters(wiped < 0 ? part : part.slice(wiped + WIPE.length));
    }
  }
  return lines.at(-1)!.text === "" ? lines.slice(0, -1) : lines;
}

export function drawSession(recording: Recording): string {
  const lines = linesOf(recording);
  const end = (lines.at(-1)?.at ?? 0) + REST;
  const width = Math.ceil(recording.width * CHARACTER + 2 * MARGIN);
  const height = recording.height * ROW + 2 * MARGIN;
  const hidden = (rows: number) => Math.max(0, rows - recording.height) * ROW;
  const percent = (time: number) => ((time / end) * 100).toFixed(2);
  const scroll = lines
    .flatMap(({ at }, index) =>
      hidden(index + 1) > 0 ? [`${percent(at)}%{transform:translateY(-${hidden(index + 1)}px)}`] : [],
    )
    .join("");
  const texts = lines.map(({ text, at }, index) => {
    const of = text.startsWith("$ ") ? ' class="typed"' : "";
    const y = MARGIN + (index + 1) * ROW - 5;
    return `<text x="${MARGIN}" y="${y}"${of} style="animation-delay:${at.toFixed(2)}s">${escaped(text)}</text>`;
  });
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${height}" width="${width}" height="${height}" role="img">
<title>A terminal session: a cluster of one virtual node, a Deployment on it, its logs and a command in it</title>
<style>
text{font:12px ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;fill:#d5dbe3;white-space:pre}
.typed{fill:#7ee0a0}
.all{transform:translateY(-${hidden(lines.length)}px)}
@media (prefers-reduced-motion:no-preference){
text{animation:come 1ms both}
.all{animation:scroll ${end.toFixed(2)}s step-end both}
}
@keyframes come{from{visibility:hidden}}
@keyframes scroll{0%{transform:none}${scroll}}
</style>
<clipPath id="screen"><rect x="0" y="${MARGIN - 4}" width="${width}" height="${height - 2 * MARGIN + 8}"/></clipPath>
<rect width="${width}" height="${height}" rx="8" fill="#15191f"/>
<g clip-path="url(#screen)"><g class="all">
${texts.join("\n")}
</g></g>
</svg>
`;
}

function escaped(text: string): string {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}
