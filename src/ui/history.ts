/**
 * How many pods were in each phase, second by second: the burst that the page draws. What was before the page was
 * opened is read from the times that the pods themselves carry. Pure, but for the ring that holds the points.
 */
import type { PodRow } from "./rows.ts";

/** Epoch milliseconds, and how many pods were pending, running, succeeded and failed then. */
export type Point = readonly [at: number, pending: number, running: number, succeeded: number, failed: number];

/** Between two points, and how far back they go. */
export const STEP_MS = 1_000;
const WINDOW_MS = 30 * 60_000;

export function countPhases(rows: Iterable<PodRow>, at: number): Point {
  let [pending, running, succeeded, failed] = [0, 0, 0, 0];
  for (const { phase } of rows) {
    if (phase === "Running") running++;
    else if (phase === "Succeeded") succeeded++;
    else if (phase === "Failed") failed++;
    else pending++;
  }
  return [at, pending, running, succeeded, failed];
}

/**
 * The points before `now` by what the pods say of themselves; pods that are gone are missing from it. It begins when
 * the first of them was made, at the earliest `WINDOW_MS` ago.
 */
export function pastOf(rows: readonly PodRow[], now: number): Point[] {
  // What changes at which time, each as what is added to the four counts.
  const changes: { at: number; column: number; by: 1 | -1 }[] = [];
  for (const { phase, created, started, ended } of rows) {
    const isOver = phase === "Succeeded" || phase === "Failed";
    const runs = started > 0 ? Math.max(started, created) : isOver ? Math.max(ended, created) : now;
    changes.push({ at: created, column: 1, by: 1 });
    if (phase === "Pending") continue;
    changes.push({ at: runs, column: 1, by: -1 }, { at: runs, column: 2, by: 1 });
    if (!isOver) continue;
    const end = Math.max(ended, runs);
    changes.push({ at: end, column: 2, by: -1 }, { at: end, column: phase === "Succeeded" ? 3 : 4, by: 1 });
  }
  changes.sort((a, b) => a.at - b.at);
  const first = changes[0]?.at ?? now;
  const counts: [number, number, number, number, number] = [0, 0, 0, 0, 0];
  const points: Point[] = [];
  let next = 0;
  for (let at = Math.max(first, now - WINDOW_MS); at < now; at += STEP_MS) {
    for (; next < changes.length && changes[next]!.at <= at; next++)
      counts[changes[next]!.column]! += changes[next]!.by;
    points.push([at, counts[1], counts[2], counts[3], counts[4]]);
  }
  return points;
}

/** The newest points, oldest first. One that says what the one before it said, and the one before that, replaces it. */
export class History {
  #points: Point[] = [];

  get points(): readonly Point[] {
    return this.#points;
  }

  begin(points: readonly Point[]): void {
    this.#points = [];
    for (const point of points) this.add(point);
  }

  add(point: Point): void {
    const last = this.#points.at(-1);
    const before = this.#points.at(-2);
    // A wall clock that was set back must not draw a line to the left.
    if (last !== undefined && point[0] <= last[0]) return;
    if (before !== undefined && isSame(before, last!) && isSame(last!, point)) this.#points.pop();
    this.#points.push(point);
    // The one before the window's beginning says how it was there.
    while ((this.#points[1]?.[0] ?? point[0]) < point[0] - WINDOW_MS) this.#points.shift();
  }
}

const isSame = (a: Point, b: Point): boolean => a.every((value, index) => index === 0 || value === b[index]);
