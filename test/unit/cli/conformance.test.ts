/** What `vmlet conformance` tells of a backend. */
import { expect, test } from "vitest";
import { closingLines, linesOf, listOfChecks } from "../../../src/cli/conformance.ts";
import { explained } from "../../../src/cli/explained-provider.ts";
import { toJunit } from "../../../src/cli/junit.ts";
import { MemoryProvider } from "../../../providers/memory/index.ts";
import {
  CHECKS,
  describeExchange,
  ExchangeLog,
  runConformance,
  type CheckResult,
} from "../../../src/provider/kit/index.ts";
import { ProviderError } from "../../../src/provider/errors.ts";
import { systemClock } from "../../../src/util/clock.ts";

const brokenProvider = (override: Partial<MemoryProvider>) =>
  Object.assign(new MemoryProvider({ clock: systemClock }), override);

test("when machines cannot be created, that is told once and what needs one is not run", async () => {
  const provider = brokenProvider({
    createPod: () => Promise.reject(new ProviderError("unavailable", "HTTP 501 without a Machine API error")),
  });
  const report = await runConformance(provider, { patienceMs: 1000 });
  expect(report.results.filter(({ outcome }) => outcome === "failed").map(({ name }) => name)).toEqual([
    "create/returns-the-machine",
    "delete/absent-leaves-a-tombstone",
  ]);
  expect(report.results.find(({ name }) => name === "logs/tail")?.message).toContain("create/returns-the-machine");
  await provider.close();
});

test("a failure has the request that came last and the script that ran", async () => {
  const exchanges = new ExchangeLog();
  const provider = brokenProvider({
    getPod: (id) => {
      exchanges.record({ method: "GET", path: `/v1/machines/${id}`, status: 500, requestId: "r-7", durationMs: 3 });
      return Promise.reject(new ProviderError("unavailable", "no"));
    },
  });
  const { deletePod } = provider;
  provider.deletePod = (id, options) => {
    exchanges.record({ method: "DELETE", path: `/v1/machines/${id}`, status: 204, durationMs: 1 });
    return deletePod.call(provider, id, options);
  };
  const report = await runConformance(provider, { only: ["containers/run-and-print"], exchanges });
  expect(report.results[0]).toMatchObject({ outcome: "failed", script: "echo conformance" });
  expect(report.results[0]?.request).toMatch(/^GET \/v1\/machines\/conf-[a-z0-9-]+ -> 500 \(3 ms, request r-7\)$/);
  await provider.close();
});

test("of two checks that fail for one reason, the second names the first", () => {
  const failed = { outcome: "failed", message: "Expected this, but that. So.", durationMs: 3 } as const;
  expect(linesOf({ ...failed, name: "a/b", sameAs: "c/d" })).toEqual(["FAIL  a/b", "for the same reason as c/d"]);
});

test("machines of failed checks stay when they are to be kept", async () => {
  const provider = brokenProvider({});
  const { getLogs } = provider;
  provider.getLogs = async function* () {};
  const report = await runConformance(provider, { only: ["containers/run-and-print"], keep: true });
  const [kept] = report.results[0]?.kept ?? [];
  expect(provider.machines.map(({ id }) => id)).toEqual([kept]);
  provider.getLogs = getLogs;
  await provider.close();
});

test("a request without a reply says why", () => {
  const exchange = { method: "GET", path: "/v1/info", durationMs: 2, error: "connect ECONNREFUSED" };
  expect(describeExchange(exchange)).toBe("GET /v1/info -> connect ECONNREFUSED (2 ms)");
});

test("every check is listed, with what it needs", () => {
  expect(listOfChecks()).toHaveLength(CHECKS.length);
  expect(listOfChecks(["exec/exit-codes"])).toEqual([
    "exec/exit-codes (needs exec)\n      Scripts and probes decide by them.",
  ]);
});

test("what a module's method throws by mistake is told with the author's line", async () => {
  const provider = explained(
    brokenProvider({
      createPod: () => {
        throw new TypeError("fetch failed to my cloud");
      },
    }),
  );
  const call = async () => provider.createPod("a", {} as never, { signal: AbortSignal.timeout(1000) });
  await expect(call()).rejects.toThrow(/createPod\(\) threw TypeError: fetch failed to my cloud/);
});

test("a report as JUnit has every check, and no character that XML lacks", () => {
  const xml = toJunit({
    provider: "mine",
    version: "1",
    capabilities: [],
    unknownCapabilities: [],
    uncheckedCapabilities: [],
    results: [
      { name: "logs/tail", outcome: "failed", message: 'Expected <a> & "b"\u0000.', durationMs: 1200 },
      { name: "exec/resize", outcome: "skipped", message: "needs exec", durationMs: 0 },
      { name: "info/says-what-it-is", outcome: "passed", durationMs: 1 },
    ],
    passed: 1,
    failed: 1,
    skipped: 1,
  });
  expect(xml).toContain('<testsuite name="mine 1" tests="3" failures="1" skipped="1">');
  expect(xml).toContain(
    '<testcase classname="logs" name="tail" time="1.200"><failure message="Expected &lt;a&gt; &amp; &quot;b&quot;?.">',
  );
});

test("restarts count as checked when one check of them ran", () => {
  const closing = (...outcomes: ("passed" | "skipped")[]) =>
    closingLines({
      provider: "mine",
      version: "1",
      capabilities: [],
      unknownCapabilities: [],
      uncheckedCapabilities: [],
      results: outcomes.map((outcome, at) => ({ name: `backend-restart/${at}`, outcome, durationMs: 0 })),
      passed: 0,
      failed: 0,
      skipped: 0,
    }).join("\n");
  expect(closing("skipped", "skipped")).toContain("not checked: what survives a restart of the backend");
  expect(closing("passed", "skipped")).not.toContain("not checked");
});

const skipped = (name: string, message: string) => ({ name, outcome: "skipped", message, durationMs: 0 }) as const;
const reportOf = (results: CheckResult[]) => ({
  ...{ provider: "mine", version: "1", capabilities: [], unknownCapabilities: [], uncheckedCapabilities: [], results },
  ...{ passed: 0, failed: 0, skipped: 0 },
});

test("checks that were left out are told at the end, once for each reason", () => {
  const results = [
    skipped("exec/exit-codes", "needs exec"),
    skipped("exec/resize", "needs exec"),
    skipped("http/missing-capabilities-are-501", "the backend has all gated routes"),
  ];
  expect(results.flatMap(linesOf)).toEqual([]);
  expect(closingLines(reportOf(results)).slice(0, -1)).toEqual([
    "skip  2 checks: needs exec",
    "skip  http/missing-capabilities-are-501: the backend has all gated routes",
  ]);
});

test("the checks that failed are named once more at the end, where they are looked for", () => {
  const failed = (name: string) => ({ name, outcome: "failed", message: "Expected.", durationMs: 0 }) as const;
  expect(closingLines(reportOf([failed("a/b"), failed("c/d")]))).toContain("failed: a/b, c/d");
});

test("there are at least 160 checks", () => {
  expect(CHECKS.length).toBeGreaterThanOrEqual(160);
});
