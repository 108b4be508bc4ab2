/** Curves and bars from the tables of a document, as SVG in the page: they take the page's own colours, light or dark. */
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { tableAfter } from "./markdown.ts";

/** A fence of this language holds a plot's name in a document, and its SVG on the page. */
export const PLOT = "plot";

const BENCH = join(import.meta.dirname, "../../test/bench/README.md");
const COLOURS = ["var(--vp-c-brand-1)", "var(--vp-c-danger-1)", "var(--vp-c-warning-1)"];
// Small, so that its letters can be read on a phone.
const WIDTH = 420;
const HEIGHT = 260;
const LEFT = 48;
const RIGHT = 16;
const TOP = 40;
const BOTTOM = 44;

interface Series {
  name: string;
  values: readonly number[];
}

interface Plot {
  title: string;
  /** What stands below: numbers of pods, or runs. */
  labels: readonly string[];
  series: readonly Series[];
  unit: string;
  kind: "curve" | "bars";
}

/** Every plot by its name, made from the bench's newest tables. @throws Error when a table or a row is not there */
export function plots(bench = readFileSync(BENCH, "utf8")): Readonly<Record<string, Plot>> {
  const [head, ...curve] = tableAfter(bench, "| pods ");
  const column = (name: string) => {
    const index = head!.findIndex((cell) => cell.startsWith(name));
    if (index < 0) throw new Error(`the curve's table has no column ${name}`);
    return curve.map((row) => numbers(row[index]!));
  };
  const labels = column("pods").map(([count]) => count!.toLocaleString("en"));
  const of = (name: string, place = 0) => column(name).map((found) => found[place]!);
  const [, ...runs] = tableAfter(bench, "## Newest run");
  return {
    cpu: {
      title: "CPU that the agent takes for a pod",
      labels,
      unit: "ms",
      kind: "curve",
      series: [
        { name: "start", values: of("CPU a pod") },
        { name: "deletion", values: of("CPU a pod", 1) },
      ],
    },
    rates: {
      title: "Pods a second",
      labels,
      unit: "/s",
      kind: "curve",
      series: [
        { name: "bound to Running", values: of("to Running") },
        { name: "deletion", values: of("deletion") },
      ],
    },
    memory: {
      title: "Memory of the agent",
      labels,
      unit: "MiB",
      kind: "curve",
      series: [
        { name: "no pods", values: of("memory") },
        { name: "all pods", values: of("memory", 1) },
      ],
    },
    "start-beside-kwok": besideKwok("1,000 pods, bound to Running", rowOf(runs, "bound to Running")),
    "deletion-beside-kwok": besideKwok("1,000 pods, deleted", rowOf(runs, "deletion")),
  };
}

/** kwok's figures of each run are in one cell, vmlet's own in memory in three, that over HTTP in the fourth. */
function besideKwok(title: string, row: readonly string[]): Plot {
  const [, kwok = "", first = "", second = "", , third = ""] = row;
  return {
    title,
    labels: ["first run", "second run", "third run"],
    unit: "/s",
    kind: "bars",
    series: [
      { name: "vmlet", values: [first, second, third].map((cell) => numbers(cell)[0]!) },
      { name: "kwok", values: numbers(kwok) },
    ],
  };
}

function rowOf(rows: readonly string[][], name: string): string[] {
  const row = rows.find(([title]) => title === name);
  if (row === undefined) throw new Error(`the newest run has no row ${name}`);
  return row;
}

const numbers = (cell: string) =>
  [...cell.matchAll(/\d[\d,]*(?:\.\d+)?/g)].map(([text]) => Number(text.replaceAll(/,(?=\d{3})|,$/g, "")));

/** The document with each plot that it names drawn in its place. @throws Error when there is none of that name */
export function withPlots(markdown: string): string {
  return markdown.replaceAll(/^```plot\n(.*)\n```$/gm, (_, name: string) => {
    const plot = plots()[name];
    if (plot === undefined) throw new Error(`no plot is called ${name}`);
    return `\`\`\`${PLOT}\n${drawn(plot)}\n\`\`\``;
  });
}

/** @throws Error when a value is missing: no plot is better than a wrong one */
export function drawn(plot: Plot): string {
  const { title, labels, series, unit, kind } = plot;
  for (const { name, values } of series)
    if (values.length !== labels.length || values.some((value) => !Number.isFinite(value)))
      throw new Error(`${title}: ${name} needs a number for each of ${labels.join("; ")}`);
  const top = roundUp(Math.max(...series.flatMap(({ values }) => values)));
  const x = (index: number) => LEFT + ((index + 0.5) * (WIDTH - LEFT - RIGHT)) / labels.length;
  const y = (value: number) => HEIGHT - BOTTOM - (value / top) * (HEIGHT - TOP - BOTTOM);
  const said = series.map(({ name, values }) => `${name} ${values.join(", ")} ${unit}`).join("; ");
  return [
    `<svg viewBox="0 0 ${WIDTH} ${HEIGHT}" role="img" width="100%" font-size="13" fill="currentColor">`,
    `<title>${title}: ${said}</title>`,
    `<text x="${LEFT}" y="16" font-weight="600">${title}, ${unit}</text>`,
    ...[0, 0.25, 0.5, 0.75, 1].map((part) => gridLine({ value: part * top, at: y(part * top) })),
    ...labels.map((label, index) => `<text x="${x(index)}" y="${HEIGHT - 22}" text-anchor="middle">${label}</text>`),
    ...series.flatMap((one, place) => [
      ...(kind === "curve" ? curveOf(one, { plot, place, x, y }) : barsOf(one, { plot, place, x, y })),
      legend(one.name, place),
    ]),
    "</svg>",
  ].join("\n");
}

function gridLine({ value, at }: { value: number; at: number }): string {
  return (
    `<line x1="${LEFT}" x2="${WIDTH - RIGHT}" y1="${at}" y2="${at}" stroke="currentColor" opacity="0.15" />` +
    `<text x="${LEFT - 6}" y="${at + 4}" text-anchor="end">${Number(value.toPrecision(3))}</text>`
  );
}

interface Drawing {
  plot: Plot;
  place: number;
  x: (index: number) => number;
  y: (value: number) => number;
}

function curveOf({ values }: Series, { plot, place, x, y }: Drawing): string[] {
  // Figures of points that are close to each other stand on either side of them.
  const isHighest = (index: number) => plot.series.every((other) => other.values[index]! <= values[index]!);
  const points = values.map((value, index) => `${x(index)},${y(value)}`).join(" ");
  return [
    `<polyline points="${points}" fill="none" stroke="${COLOURS[place]}" stroke-width="2" />`,
    ...values.map(
      (value, index) =>
        `<circle cx="${x(index)}" cy="${y(value)}" r="4" fill="${COLOURS[place]}" />` +
        `<text x="${x(index)}" y="${y(value) + (isHighest(index) ? -8 : 18)}" text-anchor="middle">${value}</text>`,
    ),
  ];
}

function barsOf({ values }: Series, { plot, place, x, y }: Drawing): string[] {
  const width = 48;
  return values.map((value, index) => {
    const left = x(index) + (place - plot.series.length / 2) * width;
    return (
      `<rect x="${left}" y="${y(value)}" width="${width - 4}" height="${y(0) - y(value)}" fill="${COLOURS[place]}" />` +
      `<text x="${left + width / 2 - 2}" y="${y(value) - 6}" text-anchor="middle">${value}</text>`
    );
  });
}

function legend(name: string, place: number): string {
  const left = LEFT + place * 140;
  return `<rect x="${left}" y="24" width="10" height="10" fill="${COLOURS[place]}" /><text x="${left + 16}" y="33">${name}</text>`;
}

/** To a number that reads well at the top of an axis. */
function roundUp(value: number): number {
  const step = 10 ** Math.floor(Math.log10(value)) / 2;
  return Math.ceil((value * 1.1) / step) * step;
}
