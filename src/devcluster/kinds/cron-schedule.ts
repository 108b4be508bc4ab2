/**
 * Schedules of CronJobs, as `robfig/cron`'s standard parser reads them: five fields, `@daily` and its like, `@every
 * 5m`.
 */
import { toError, VmletError } from "../../util/errors.ts";
import { parseDuration } from "../../resources/duration.ts";

class ScheduleError extends VmletError {
  readonly code = "DEVCLUSTER_CRON_SCHEDULE";
}

export interface Schedule {
  /**
   * The first time after `afterMs` (milliseconds since the epoch), or undefined when there is none within five years.
   */
  next(afterMs: number): number | undefined;
}

interface FieldRule {
  name: string;
  min: number;
  max: number;
  names?: readonly string[];
}

const MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
const DAYS = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];
const rules: readonly FieldRule[] = [
  { name: "minute", min: 0, max: 59 },
  { name: "hour", min: 0, max: 23 },
  { name: "day of month", min: 1, max: 31 },
  { name: "month", min: 1, max: 12, names: MONTHS },
  { name: "day of week", min: 0, max: 6, names: DAYS },
];
const descriptors: Readonly<Record<string, string>> = {
  "@yearly": "0 0 1 1 *",
  "@annually": "0 0 1 1 *",
  "@monthly": "0 0 1 * *",
  "@weekly": "0 0 * * 0",
  "@daily": "0 0 * * *",
  "@midnight": "0 0 * * *",
  "@hourly": "0 * * * *",
};

/** @param timeZone IANA name; UTC when undefined. @throws ScheduleError in robfig/cron's words */
export function parseSchedule(text: string, timeZone?: string): Schedule {
  if (text.startsWith("@every ")) return everySchedule(text);
  if (text.startsWith("@") && descriptors[text] === undefined)
    throw new ScheduleError(`unrecognized descriptor: ${text}`);
  const fields = (descriptors[text] ?? text).trim().split(/\s+/);
  if (fields.length !== 5)
    throw new ScheduleError(`expected exactly 5 fields, found ${fields.length}: [${fields.join(" ")}]`);
  const [minutes, hours, days, months, weekdays] = fields.map((field, i) => parseField(field, rules[i]!)) as [
    Set<number>,
    Set<number>,
    Set<number>,
    Set<number>,
    Set<number>,
  ];
  const isAny = (field: string) => field.startsWith("*") || field.startsWith("?");
  const eitherDay = !isAny(fields[2]!) && !isAny(fields[4]!);
  const local = localTime(timeZone);
  return {
    next(afterMs) {
      // By whole minutes, skipping days and hours that cannot match.
      let at = Math.floor(afterMs / 60_000) * 60_000 + 60_000;
      const end = afterMs + 5 * 366 * 86_400_000;
      while (at < end) {
        const t = local(at);
        const dayMatches = eitherDay
          ? days.has(t.day) || weekdays.has(t.weekday)
          : days.has(t.day) && weekdays.has(t.weekday);
        // In steps of an hour where the day is wrong: a day has 23 to 25 of them.
        if (!months.has(t.month) || !dayMatches || !hours.has(t.hour)) at += (60 - t.minute) * 60_000;
        else if (!minutes.has(t.minute)) at += 60_000;
        else return at;
      }
      return undefined;
    },
  };
}

function everySchedule(text: string): Schedule {
  let ms: number;
  try {
    ms = parseDuration(text.slice("@every ".length));
  } catch (thrown) {
    throw new ScheduleError(`failed to parse duration ${text}: ${toError(thrown).message}`, { cause: thrown });
  }
  const step = Math.max(1000, Math.floor(ms / 1000) * 1000);
  return { next: (afterMs) => Math.floor(afterMs / 1000) * 1000 + step };
}

function parseField(text: string, rule: FieldRule): Set<number> {
  const values = new Set<number>();
  for (const part of text.split(",")) {
    const [range = "", stepText, ...more] = part.split("/");
    if (more.length > 0) throw new ScheduleError(`too many slashes: ${part}`);
    const [lowText = "", highText, ...extra] = range.split("-");
    if (extra.length > 0) throw new ScheduleError(`too many hyphens: ${part}`);
    const any = lowText === "*" || lowText === "?";
    const low = any ? rule.min : parseValue(lowText, rule);
    let high = any ? rule.max : highText === undefined ? low : parseValue(highText, rule);
    if (stepText !== undefined && highText === undefined) high = rule.max;
    const step = stepText === undefined ? 1 : parseNumber(stepText);
    if (low < rule.min) throw new ScheduleError(`beginning of range (${low}) below minimum (${rule.min}): ${part}`);
    if (high > rule.max) throw new ScheduleError(`end of range (${high}) above maximum (${rule.max}): ${part}`);
    if (low > high) throw new ScheduleError(`beginning of range (${low}) beyond end of range (${high}): ${part}`);
    if (step === 0) throw new ScheduleError(`step of range should be a positive number: ${part}`);
    for (let value = low; value <= high; value += step) values.add(value);
  }
  return values;
}

function parseValue(text: string, rule: FieldRule): number {
  const named = rule.names?.indexOf(text.toLowerCase()) ?? -1;
  return named >= 0 ? named + rule.min : parseNumber(text);
}

function parseNumber(text: string): number {
  if (!/^\d+$/.test(text))
    throw new ScheduleError(
      `failed to parse int from ${text}: strconv.Atoi: parsing ${JSON.stringify(text)}: invalid syntax`,
    );
  return Number(text);
}

interface LocalTime {
  month: number;
  day: number;
  weekday: number;
  hour: number;
  minute: number;
}

/** Reads the clock on the wall of a time zone. @throws RangeError for a zone that is unknown */
function localTime(timeZone: string | undefined): (ms: number) => LocalTime {
  const format = new Intl.DateTimeFormat("en-US", {
    timeZone: timeZone ?? "UTC",
    hourCycle: "h23",
    weekday: "short",
    month: "numeric",
    day: "numeric",
    hour: "numeric",
    minute: "numeric",
  });
  return (ms) => {
    const parts = Object.fromEntries(format.formatToParts(ms).map(({ type, value }) => [type, value]));
    return {
      month: Number(parts["month"]),
      day: Number(parts["day"]),
      weekday: DAYS.indexOf(parts["weekday"]!.toLowerCase()),
      hour: Number(parts["hour"]),
      minute: Number(parts["minute"]),
    };
  };
}

export function isTimeZone(name: string): boolean {
  try {
    localTime(name);
    return true;
  } catch {
    // Intl knows all zones of the tz database and throws for everything else.
    return false;
  }
}
