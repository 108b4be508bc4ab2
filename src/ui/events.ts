/** Events of one object as lines, newest first. Pure. */
const MAX_TEXT = 1_000;

/** Of an Event what is read; both APIs' fields, of which either may be absent. */
export interface WireEvent {
  readonly type?: string;
  readonly reason?: string;
  readonly message?: string;
  readonly count?: number;
  readonly eventTime?: string | null;
  readonly firstTimestamp?: string | null;
  readonly lastTimestamp?: string | null;
  readonly series?: { readonly count?: number; readonly lastObservedTime?: string } | null;
  readonly reportingComponent?: string;
  readonly source?: { readonly component?: string };
}

/** `at` in epoch milliseconds. */
interface EventRow {
  type: string;
  reason: string;
  message: string;
  count: number;
  at: number;
  from: string;
}

export function eventRows(events: readonly WireEvent[]): EventRow[] {
  return events
    .map((event) => ({
      type: event.type ?? "",
      reason: (event.reason ?? "").slice(0, MAX_TEXT),
      message: (event.message ?? "").trim().slice(0, MAX_TEXT),
      count: event.series?.count ?? event.count ?? 1,
      at:
        Date.parse(
          event.series?.lastObservedTime ?? event.lastTimestamp ?? event.eventTime ?? event.firstTimestamp ?? "",
        ) || 0,
      from: (event.reportingComponent || event.source?.component || "").slice(0, MAX_TEXT),
    }))
    .toSorted((a, b) => b.at - a.at);
}
