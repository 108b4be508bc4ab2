/**
 * What one page is told, line by line in JSON: everything once, then what changed. A row that changes often is told as
 * it is when its turn comes, so that neither a watch that floods nor a page that reads slowly costs more memory than
 * there are rows.
 */
import type { Clock } from "../util/clock.ts";
import { pause } from "../util/abort.ts";
import { Pulse } from "../util/pulse.ts";
import type { ClusterView, Faults } from "./cluster-view.ts";
import type { Point } from "./history.ts";
import type { NodeRow, PodRow } from "./rows.ts";

/** Changes are gathered for so long. */
const BATCH_MS = 200;
/** Rows of one line. */
const BATCH_ROWS = 500;
/** A page that hears nothing for longer knows that we are gone. */
const TICK_MS = 10_000;
/** Points of the history that a page that reads slowly may have missed. */
const MAX_POINTS = 3_600;

/** One line of the feed; `put` replaces rows of the same UID, `gone` are UIDs. `now` is the server's wall clock. */
export type FeedLine =
  | { kind: "hello"; now: number; server: string; context: string; namespace: string | undefined; version: string }
  | { kind: "faults"; nodes: string | undefined; pods: string | undefined }
  | { kind: "nodes"; put: NodeRow[]; gone: string[] }
  | { kind: "pods"; put: PodRow[]; gone: string[] }
  | { kind: "history"; points: Point[] }
  | { kind: "synced" }
  | { kind: "tick"; now: number };

/** @param hello what does not change. Ends when the signal aborts; takes the next line when it is asked for it. */
export async function* feed(
  view: ClusterView,
  hello: Omit<Extract<FeedLine, { kind: "hello" }>, "kind" | "now">,
  { clock, signal }: { clock: Clock; signal: AbortSignal },
): AsyncGenerator<FeedLine> {
  const dirty = { node: new Set<string>(), pod: new Set<string>() };
  const changed = new Pulse();
  let points: Point[] = [...view.history];
  let faults: Faults | undefined;
  let isSynced = false;
  using _changes = view.onChange(({ kind, uid }) => {
    if (kind === "node" || kind === "pod") dirty[kind].add(uid);
    changed.fire();
  });
  using _points = view.onPoint((point) => {
    points.push(point);
    if (points.length > MAX_POINTS) points = points.slice(-MAX_POINTS / 2);
    changed.fire();
  });
  for (const { uid } of view.nodes()) dirty.node.add(uid);
  for (const { uid } of view.pods()) dirty.pod.add(uid);
  yield { kind: "hello", now: clock.now(), ...hello };
  while (!signal.aborted) {
    const { nodes, pods } = view.faults;
    if (faults === undefined || faults.nodes !== nodes || faults.pods !== pods) {
      faults = { nodes, pods };
      yield { kind: "faults", nodes, pods };
    }
    for (const batch of batches(dirty.node)) yield { kind: "nodes", ...rowsOf(batch, (uid) => view.node(uid)) };
    for (const batch of batches(dirty.pod)) yield { kind: "pods", ...rowsOf(batch, (uid) => view.pod(uid)) };
    if (!isSynced && view.synced) {
      isSynced = true;
      yield { kind: "synced" };
    }
    if (points.length > 0) yield { kind: "history", points: points.splice(0) };
    await changed.waitAtMost(clock, TICK_MS, signal);
    yield { kind: "tick", now: clock.now() };
    await pause(clock, BATCH_MS, signal);
  }
}

/** Takes out what is in the set now, in portions. */
function* batches(uids: Set<string>): Generator<string[]> {
  const all = [...uids];
  uids.clear();
  for (let at = 0; at < all.length; at += BATCH_ROWS) yield all.slice(at, at + BATCH_ROWS);
}

function rowsOf<T>(uids: readonly string[], row: (uid: string) => T | undefined): { put: T[]; gone: string[] } {
  const put: T[] = [];
  const gone: string[] = [];
  for (const uid of uids) {
    const found = row(uid);
    if (found === undefined) gone.push(uid);
    else put.push(found);
  }
  return { put, gone };
}
