/** Figures and times as people read them. */

const UNPRINTABLE =
  // eslint-disable-next-line no-control-regex
  /\u001b\[[0-9;?]*[A-Za-z]|[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;

/** Without terminal escapes, control characters, and those that turn the direction of what follows. */
export function plain(text) {
  return text.replace(UNPRINTABLE, "");
}

/** kubectl's: two units at most. */
export function age(ms) {
  const seconds = Math.max(0, Math.floor(ms / 1000));
  if (seconds < 120) return `${seconds}s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 10) return seconds % 60 === 0 ? `${minutes}m` : `${minutes}m${seconds % 60}s`;
  if (minutes < 180) return `${minutes}m`;
  const hours = Math.floor(minutes / 60);
  if (hours < 8) return minutes % 60 === 0 ? `${hours}h` : `${hours}h${minutes % 60}m`;
  if (hours < 48) return `${hours}h`;
  const days = Math.floor(hours / 24);
  return days < 8 && hours % 24 !== 0 ? `${days}d${hours % 24}h` : `${days}d`;
}

export function cpu(millis) {
  if (millis < 1000) return `${millis}m`;
  return (millis / 1000).toLocaleString("en", { maximumFractionDigits: 1 });
}

export function memory(bytes) {
  for (const [unit, size] of [
    ["Ti", 2 ** 40],
    ["Gi", 2 ** 30],
    ["Mi", 2 ** 20],
    ["Ki", 2 ** 10],
  ])
    if (bytes >= size) return `${(bytes / size).toLocaleString("en", { maximumFractionDigits: 1 })} ${unit}`;
  return `${bytes} B`;
}

export function size({ cpuMillis, memoryBytes }) {
  if (cpuMillis === 0 && memoryBytes === 0) return "–";
  return `${cpu(cpuMillis)} cpu · ${memory(memoryBytes)}`;
}

export function money({ amount, currency }) {
  return amount.toLocaleString("en", {
    style: "currency",
    currency,
    minimumFractionDigits: 2,
    maximumFractionDigits: amount < 0.1 ? 4 : 2,
  });
}

/** What a machine has cost so far by its node's price; undefined where that is not known. */
export function costOf(pod, node, now) {
  if (node?.price === undefined || pod.started === 0) return undefined;
  const hours = Math.max(0, (pod.ended || now) - pod.started) / 3_600_000;
  const { cpu: perCpu, memoryGiB, currency } = node.price;
  return {
    amount: hours * ((pod.size.cpuMillis / 1000) * perCpu + (pod.size.memoryBytes / 2 ** 30) * memoryGiB),
    currency,
  };
}

export function count(number, one, many = `${one}s`) {
  return `${number.toLocaleString("en")} ${number === 1 ? one : many}`;
}

export function clockTime(ms) {
  return new Date(ms).toLocaleTimeString(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit" });
}
