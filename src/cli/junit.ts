/** A report of the conformance kit as JUnit's XML, which every CI shows. */
import type { ConformanceReport } from "../provider/kit/index.ts";

const ENTITIES: Readonly<Record<string, string>> = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" };

/** Text and attributes alike; what XML cannot have at all becomes a question mark. */
function escape(text: string): string {
  return text
    .replaceAll(/[&<>"]/g, (char) => ENTITIES[char]!)
    .replaceAll(/[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\u{10000}-\u{10ffff}]/gu, "?");
}

export function toJunit({ provider, version, results, failed, skipped }: ConformanceReport): string {
  const cases = results.map(({ name, outcome, message = "", request, script, durationMs }) => {
    const [group = "", rest = name] = name.split("/");
    const head = `  <testcase classname="${escape(group)}" name="${escape(rest)}" time="${(durationMs / 1000).toFixed(3)}"`;
    const details = [message, request && `last request: ${request}`, script && `script: ${script}`].filter(Boolean);
    if (outcome === "failed")
      return `${head}><failure message="${escape(message)}">${escape(details.join("\n"))}</failure></testcase>`;
    if (outcome === "skipped") return `${head}><skipped message="${escape(message)}"/></testcase>`;
    return `${head}/>`;
  });
  const suite = `name="${escape(`${provider} ${version}`)}" tests="${results.length}" failures="${failed}" skipped="${skipped}"`;
  return `<?xml version="1.0" encoding="UTF-8"?>\n<testsuite ${suite}>\n${cases.join("\n")}\n</testsuite>\n`;
}
