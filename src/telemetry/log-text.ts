/** Log lines for people: the same lines as JSON has them, as text on a terminal. Pure. */

const RESET = "\u001b[0m";
const DIM = "\u001b[2m";
const COLORS: Readonly<Record<string, string>> = {
  debug: DIM,
  info: "\u001b[32m",
  warn: "\u001b[33m",
  error: "\u001b[31m",
};
/** What a terminal would obey, or would turn what follows around. */
// eslint-disable-next-line no-control-regex
const UNPRINTABLE = /[\u0000-\u001f\u007f-\u009f\u202a-\u202e\u2066-\u2069]/g;

/**
 * One line of JSON as `14:03:07 WARN  A sentence  field=value`, with the stack of an error in lines of its own below
 * it. What is no JSON stays as it is.
 *
 * @param line with its newline, as the result
 */
export function logText(line: string, { color }: { color: boolean }): string {
  let fields: Record<string, unknown>;
  try {
    fields = JSON.parse(line) as Record<string, unknown>;
  } catch {
    return line;
  }
  const { time, level, msg, err, ...others } = fields;
  const paint = (text: string, as: string | undefined) => (color && as !== undefined ? `${as}${text}${RESET}` : text);
  const word = String(level).toUpperCase().padEnd(5);
  const { stack, message } = (typeof err === "object" && err !== null ? err : {}) as {
    stack?: unknown;
    message?: unknown;
  };
  const told = { ...others, ...(err !== undefined && { err: message ?? err }) };
  const parts = [
    paint(timeOfDay(time), DIM),
    paint(word, COLORS[String(level)]),
    escaped(String(msg)),
    ...Object.entries(told).map(([name, value]) => `${paint(`${escaped(name)}=`, DIM)}${valueText(value)}`),
  ];
  const below = typeof stack === "string" ? stack.split("\n").slice(1) : [];
  return `${[parts.join(" "), ...below.map((each) => paint(`  ${escaped(each.trim())}`, DIM))].join("\n")}\n`;
}

/** Of this host's time zone. */
function timeOfDay(time: unknown): string {
  const date = new Date(String(time));
  return Number.isNaN(date.getTime()) ? "--:--:--" : date.toTimeString().slice(0, 8);
}

function valueText(value: unknown): string {
  if (typeof value !== "string") return escaped(JSON.stringify(value) ?? "undefined");
  return /^[^\s"=]+$/.test(value) ? escaped(value) : escaped(JSON.stringify(value));
}

/** As one line of text that changes nothing on a terminal. */
export const escaped = (text: string): string =>
  text.replace(UNPRINTABLE, (character) => `\\u${character.charCodeAt(0).toString(16).padStart(4, "0")}`);
