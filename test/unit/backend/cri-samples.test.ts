/** What a runtime that speaks CRI has measured, as the Machine API has it. */
import { expect, test } from "vitest";
import type { PodSandboxStats } from "../../../providers/local/engines/cri/api.gen.js";
import { LABEL_INSTANCE } from "../../../providers/local/engines/cri/labels.ts";
import { containerSamples, sandboxPressure } from "../../../providers/local/engines/cri/samples.ts";

const data = (total: bigint, average = 0.5) => ({ Total: total, Avg10: average, Avg60: 0, Avg300: 0 });
const time = (total_us: number, avg10 = 0.5) => ({ total_us, avg10, avg60: 0, avg300: 0 });

const sampleOf = (linux: object) => ({ linux: { containers: [], ...linux } }) as unknown as PodSandboxStats;
const container = (measured: object) =>
  sampleOf({ containers: [{ attributes: { labels: { [LABEL_INSTANCE]: "i" } }, memory: {}, ...measured }] });
const REF = [{ name: "a", attempt: 0, id: "i", dir: "/" }];

test("pressure is told of what the runtime has measured", () => {
  const psi = { Some: data(20n), Full: data(10n) };
  expect(containerSamples(container({ cpu: { psi }, io: { psi } }), REF)).toMatchObject([
    { name: "a", pressure: { cpu: { some: time(20), full: time(10) }, io: { some: time(20), full: time(10) } } },
  ]);
  expect(sandboxPressure(sampleOf({ memory: { psi } }))).toEqual({
    pressure: { memory: { some: time(20), full: time(10) } },
  });
});

test("a runtime that measures none tells of none", () => {
  expect(containerSamples(container({}), REF)[0]).not.toHaveProperty("pressure");
  expect(sandboxPressure(undefined)).toEqual({});
});

test("figures that are no percentages do not spoil the sample", () => {
  const psi = { Some: data(2n ** 64n - 1n, NaN), Full: data(0n, 1e9) };
  expect(sandboxPressure(sampleOf({ cpu: { psi } })).pressure?.cpu).toEqual({
    some: time(Number.MAX_SAFE_INTEGER, 0),
    full: time(0, 100),
  });
});
