import { globSync, readFileSync } from "node:fs";
import { expect, test } from "vitest";
import { unusedMetrics } from "../../../src/telemetry/metrics.ts";

test("every metric is written somewhere: one that stays 0 for ever says that all is well when nobody looks", () => {
  const sources = globSync("src/**/*.ts", { exclude: ["src/telemetry/metrics.ts"] })
    .map((path) => readFileSync(path, "utf8"))
    .join("\n");
  const { registry: _registry, workqueue, onScrape: _onScrape, render: _render, ...others } = unusedMetrics();
  const names = [...Object.keys(others), ...Object.keys(workqueue)];
  const isWritten = (name: string) => new RegExp(String.raw`\b(metrics|workqueue)\.${name}\b`).test(sources);
  expect(names.filter((name) => !isWritten(name))).toEqual([]);
});
