/** The checker must catch what it is there for: each test plants one violation. */
import { spawn } from "node:child_process";
import { describe, expect, test } from "vitest";
import { waitFor, must } from "../harness/wait.ts";
import {
  containerVariable,
  doubleMachines,
  doubles,
  transitionViolations,
  uidVariable,
  workloadProcesses,
} from "./history.ts";

const pod = (status: object) => ({ metadata: { namespace: "n", name: "p", uid: "u" }, status });
const counted = (restartCount: number) => ({ containerStatuses: [{ name: "main", restartCount }] });

describe("transitionViolations", () => {
  test.each([
    ["a start time that changes", { startTime: "a" }, { startTime: "b" }, /^time: n\/p \(u\): startTime/],
    ["a start time that disappears", { startTime: "a" }, {}, /^time:/],
    [
      "Succeeded that becomes Failed",
      { phase: "Succeeded" },
      { phase: "Failed" },
      /^final: .* from Succeeded to Failed/,
    ],
    ["Failed that becomes Running", { phase: "Failed" }, { phase: "Running" }, /^final:/],
    ["Running that becomes Pending", { phase: "Running" }, { phase: "Pending" }, /^final:/],
    ["a restart count that falls", counted(2), counted(1), /^count: .* fell from 2 to 1/],
    ["a container status that disappears", counted(0), {}, /^count: .* disappeared/],
  ])("reports %s", (_, before, after, expected) => {
    expect(transitionViolations(pod(before), pod(after))).toEqual([expect.stringMatching(expected)]);
  });

  test("accepts the life of a pod that restarts and succeeds", () => {
    const life = [
      { phase: "Pending" },
      { phase: "Pending", startTime: "a", ...counted(0) },
      { phase: "Running", startTime: "a", ...counted(0) },
      { phase: "Running", startTime: "a", ...counted(1) },
      { phase: "Succeeded", startTime: "a", ...counted(1) },
    ].map(pod);
    expect(life.slice(1).flatMap((after, index) => transitionViolations(life[index], after))).toEqual([]);
  });
});

describe("doubleMachines", () => {
  const machine = (id: string, state: string) => ({ id, state, labels: { "vmlet.dev/uid": "u" } });

  test("reports two live machines of one pod", () => {
    expect(doubleMachines([machine("a", "running"), machine("b", "starting")])).toEqual([
      expect.stringMatching(/^one: .*a, b/),
    ]);
  });

  test("accepts one that is over beside one that lives", () => {
    expect(doubleMachines([machine("a", "stopped"), machine("b", "running"), machine("c", "deleted")])).toEqual([]);
  });
});

describe("workloadProcesses", () => {
  test("finds a container that runs twice, and takes a shell's child for no copy", async () => {
    const uid = `selftest-${process.pid}`;
    const start = () =>
      spawn("sh", ["-c", "sleep 60; true"], {
        env: { ...process.env, [uidVariable]: uid, [containerVariable]: "main" },
        detached: true,
      });
    const mine = () => workloadProcesses().filter((each) => each.uid === uid);
    const first = start();
    const children = [first];
    try {
      await waitFor({ what: "the first copy" }, () => must(mine().length === 1, mine()));
      expect(doubles(mine())).toEqual([]);
      const second = start();
      children.push(second);
      await waitFor({ what: "the second copy" }, () => must(mine().length === 2, mine()));
      expect(doubles(mine())).toHaveLength(1);
      expect(new Set(doubles(mine())[0]!.map((each) => each.pid))).toEqual(new Set([first.pid, second.pid]));
    } finally {
      for (const child of children) process.kill(-child.pid!, "SIGKILL");
    }
  });
});
