import { execFile } from "node:child_process";
import { join } from "node:path";
import { promisify } from "node:util";
import { describe, expect, test } from "vitest";
import { leaveOut } from "../../support/left-out.ts";

const missing = process.getuid?.() === 0 ? [] : ["root"];
if (missing.length > 0) leaveOut("a watch whose packets are dropped", missing);

describe.skipIf(missing.length > 0)("a watch whose packets are dropped both ways", () => {
  test("is found dead by its connection alone, and goes on from where it was without a list", async () => {
    const program = join(import.meta.dirname, "dead-line.ts");
    const { stdout } = await promisify(execFile)("unshare", ["--net", process.execPath, program], {
      // Keep-alive asks after 30 s of silence, and ten times.
      timeout: 120_000,
    });
    expect(JSON.parse(stdout)).toEqual({ pods: ["before", "meanwhile"], watchedFrom: ["10", "10"], lists: 1 });
  });
});
