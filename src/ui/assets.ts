/** The page's files, by name: what is not in this table is not served. */
import { readFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { join } from "node:path";

const PAGE = join(import.meta.dirname, "page");
const require = createRequire(import.meta.url);

const TYPES: Readonly<Record<string, string>> = {
  html: "text/html; charset=utf-8",
  js: "text/javascript; charset=utf-8",
  css: "text/css; charset=utf-8",
  svg: "image/svg+xml",
};

const OWN = [
  ...["index.html", "style.css", "icon.svg"],
  ...["main.js", "connection.js", "state.js", "chart.js", "pods.js", "nodes.js", "details.js", "dom.js", "format.js"],
  "terminal.js",
];
/** Of packages, under names of our own. */
const FOREIGN: Readonly<Record<string, string>> = {
  "xterm.js": "@xterm/xterm/lib/xterm.mjs",
  "xterm.css": "@xterm/xterm/css/xterm.css",
  "xterm-fit.js": "@xterm/addon-fit/lib/addon-fit.mjs",
};

/**
 * Nothing but our own files runs or is shown, no other page may frame this one or learn where it was, and nothing in
 * it is ever made from text.
 */
const HEADERS = {
  "content-security-policy": [
    "default-src 'none'",
    ...["script-src", "style-src", "img-src", "connect-src", "font-src"].map((directive) => `${directive} 'self'`),
    ...["base-uri", "form-action", "frame-ancestors"].map((directive) => `${directive} 'none'`),
    "require-trusted-types-for 'script'",
  ].join("; "),
  "x-content-type-options": "nosniff",
  "referrer-policy": "no-referrer",
  "cross-origin-opener-policy": "same-origin",
  "cross-origin-resource-policy": "same-origin",
  "permissions-policy": "camera=(), geolocation=(), microphone=()",
  "cache-control": "no-cache",
};

/** @param path of the request; undefined when there is no such file */
export async function asset(path: string): Promise<{ headers: Record<string, string>; body: Buffer } | undefined> {
  const name = path === "/" ? "index.html" : path.slice(1);
  const file = OWN.includes(name)
    ? join(PAGE, name)
    : Object.hasOwn(FOREIGN, name)
      ? require.resolve(FOREIGN[name]!)
      : undefined;
  if (file === undefined) return undefined;
  const type = TYPES[name.split(".").at(-1)!]!;
  return { headers: { ...HEADERS, "content-type": type }, body: await readFile(file) };
}
