import { describe, expect, test } from "vitest";
import { DEFAULT_SESSION_LIMITS, Sessions, type SessionType } from "../../../src/kubelet/sessions.ts";
import { unusedMetrics } from "../../../src/telemetry/metrics.ts";

describe("the sessions of a node", () => {
  /** Opens sessions in turn to many pods of the namespace until one is refused; how many there were, and why no more. */
  function exhaust(sessions: Sessions, type: SessionType, namespace: string): [opened: number, refusal: string] {
    for (let opened = 0; ; opened++) {
      try {
        sessions.open(type, { namespace, uid: `${namespace}-${opened % 50}` }, "kube-apiserver-kubelet-client");
      } catch (thrown) {
        return [opened, (thrown as Error).message];
      }
    }
  }

  test.each(["exec", "logs"] as const)(
    "leave some to others when one namespace opens %s sessions without end",
    (type) => {
      const sessions = new Sessions(DEFAULT_SESSION_LIMITS, unusedMetrics());
      const [opened, refusal] = exhaust(sessions, type, "hostile");
      expect([opened, refusal]).toEqual([160, `too many ${type} sessions: the limit per namespace is 160`]);
      using _neighbour = sessions.open(type, { namespace: "neighbour", uid: "n" }, "kube-apiserver-kubelet-client");
    },
  );

  test("are given back to the namespace when they end", () => {
    const sessions = new Sessions({ ...DEFAULT_SESSION_LIMITS, perNamespace: 1 }, unusedMetrics());
    const pod = { namespace: "a", uid: "1" };
    sessions.open("exec", pod, "u")[Symbol.dispose]();
    expect(() => sessions.open("exec", pod, "u")).not.toThrow();
  });
});
