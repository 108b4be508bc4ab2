/** Prometheus' text format 0.0.4 for figures that are made afresh per scrape, with the labels in the order given. */

export const TEXT_FORMAT = "text/plain; version=0.0.4; charset=utf-8";

export type Labels = readonly (readonly [name: string, value: string])[];

export interface Sample {
  labels: Labels;
  value: number;
  /** Milliseconds since the epoch; without it the sample is of the scrape's time. */
  timestampMs?: number | undefined;
}

/** One metric with its samples; nothing at all when there are none. */
export function family(name: string, type: "counter" | "gauge", help: string, samples: readonly Sample[]): string {
  if (samples.length === 0) return "";
  const lines = samples.map(({ labels, value, timestampMs }) => {
    const text = labels.map(([label, content]) => `${label}="${escapeLabel(content)}"`).join(",");
    return `${name}${text === "" ? "" : `{${text}}`} ${value}${timestampMs === undefined ? "" : ` ${timestampMs}`}\n`;
  });
  return `# HELP ${name} ${help}\n# TYPE ${name} ${type}\n${lines.join("")}`;
}

function escapeLabel(value: string): string {
  return value.replaceAll("\\", "\\\\").replaceAll('"', '\\"').replaceAll("\n", "\\n");
}
