/** Whom the kernel kills first when the host has no more memory. */
import { execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import { readFileSync } from "node:fs";
import { expect, onTestFinished, test } from "vitest";
import { setOomScore } from "../../../providers/local/host/oom-score.ts";
import { lowestOomScore } from "../../support/oom-score.ts";

const MODULE = new URL("../../../providers/local/host/oom-score.ts", import.meta.url).href;

test("the backend and what it starts go last, as far as its rights reach", () => {
  const script = `
    import { keepUntilLast } from ${JSON.stringify(MODULE)};
    import { execFileSync } from "node:child_process";
    keepUntilLast();
    console.log(execFileSync("cat", ["/proc/self/oom_score_adj"], { encoding: "utf8" }).trim());`;
  const told = execFileSync(process.execPath, ["--input-type=module", "-e", script], { encoding: "utf8" });
  expect(told).toBe(lowestOomScore());
});

test("a process is given the rank that its machine has", async () => {
  const child = spawn("sleep", ["1000"], { stdio: "ignore" });
  onTestFinished(() => void child.kill("SIGKILL"));
  await once(child, "spawn");
  await setOomScore(child.pid!, 987);
  expect(readFileSync(`/proc/${child.pid}/oom_score_adj`, "utf8")).toBe("987\n");
});
