import { describe, expect, test } from "vitest";
import { AuditLog, type AuditedCommand } from "../../../src/telemetry/audit.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { VirtualClock } from "../../support/virtual-clock.ts";

function auditTo(commands?: AuditedCommand) {
  const lines: Record<string, unknown>[] = [];
  const clock = new VirtualClock();
  const logger = { ...silentLogger, info: (fields: object) => void lines.push(fields as Record<string, unknown>) };
  return { lines, clock, audit: new AuditLog({ logger, clock, commands }) };
}

describe("a line of the audit", () => {
  test("says the action, what the caller gives, and how long it took, and leaves out what is not known", async () => {
    const { lines, clock, audit } = auditTo();
    const since = audit.now();
    await clock.advance(1500);
    audit.write("exec", since, { result: "ok", user: "alice", groups: ["a", "b"], container: undefined });
    expect(lines).toEqual([{ audit: "exec", result: "ok", user: "alice", groups: ["a", "b"], durationMs: 1500 }]);
  });

  test.each([
    ["a new line", 'x\n{"audit":"exec"}', 'x\ufffd{"audit":"exec"}'],
    ["an escape sequence", "\u001b[2Jx\u009b1m", "\ufffd[2Jx\ufffd1m"],
    ["text that runs backwards", "\u202eabc", "\ufffdabc"],
    ["a line separator", "a\u2028b", "a\ufffdb"],
    ["half a character", "\ud800", "\ufffd"],
    ["invisible letters", "a\u200bb\u00ad", "a\ufffdb\ufffd"],
  ])("holds no %s", (_what, given, written) => {
    const { lines, audit } = auditTo();
    audit.write("exec", 0, { result: "ok", user: given, groups: [given] });
    expect(lines[0]).toMatchObject({ user: written, groups: [written] });
  });

  test("is cut to a length, whatever is sent", () => {
    const { lines, audit } = auditTo("full");
    const words = Array.from({ length: 10_000 }, () => "x".repeat(10_000));
    audit.write("exec", 0, { result: "refused", user: "y".repeat(1e6), ...audit.command(words) });
    expect(JSON.stringify(lines[0]).length).toBeLessThan(10_000);
    expect(lines[0]).toMatchObject({ commandWords: 10_000, user: `${"y".repeat(256)}...` });
  });

  test("says of a command its first word alone, where arguments may be secret, and all of it only when that is wanted", () => {
    const words = ["mysql", "-phunter2"];
    expect(auditTo().audit.command(words)).toEqual({ command: "mysql", commandWords: 2 });
    expect(auditTo("full").audit.command(words)).toEqual({ command: words, commandWords: 2 });
    expect(auditTo().audit.command([])).toEqual({});
  });
});

describe("a flood of refusals", () => {
  test("is written in part, and counted; what was done is written always", async () => {
    const { lines, clock, audit } = auditTo();
    for (let i = 0; i < 500; i++) audit.write("exec", 0, { result: "refused" });
    for (let i = 0; i < 500; i++) audit.write("exec", 0, { result: "ok" });
    const refused = lines.filter(({ result }) => result === "refused").length;
    expect([refused, lines.length - refused]).toEqual([100, 500]);
    expect(lines[100]).toMatchObject({ refusalsNotWritten: 400 });
    await clock.advance(1000);
    audit.write("exec", 0, { result: "refused" });
    expect(lines.at(-1)).toMatchObject({ result: "refused" });
    expect(lines.at(-1)).not.toHaveProperty("refusalsNotWritten");
  });
});
