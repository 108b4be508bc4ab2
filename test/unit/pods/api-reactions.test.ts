import { describe, expect, test } from "vitest";
import { KubeApiError } from "../../../src/kube/errors.ts";
import { reactionTo, refusedFields, type PodCall } from "../../../src/pods/api-reactions.ts";

const failure = (status: number, reason = `HTTP${status}`, details = {}) =>
  new KubeApiError(`${status}`, { status, reason, details });
const ITS_OWN = failure(404, "NotFound", { kind: "pods", name: "web" });

describe("the API server's refusals", () => {
  test.each<[KubeApiError, Record<PodCall, string>]>([
    [ITS_OWN, { read: "go_on", status: "go_on", remove: "go_on" }],
    [failure(404), { read: "retry", status: "retry", remove: "retry" }],
    [failure(404, "NotFound"), { read: "retry", status: "retry", remove: "retry" }],
    [failure(409, "Conflict"), { read: "retry", status: "read", remove: "read" }],
    [failure(400), { read: "retry", status: "without tell", remove: "retry tell" }],
    [failure(413), { read: "retry", status: "without tell", remove: "retry tell" }],
    [failure(422, "Invalid"), { read: "retry", status: "without tell", remove: "retry tell" }],
    [failure(403, "Forbidden"), { read: "list", status: "without tell", remove: "retry tell" }],
    [failure(418), { read: "retry", status: "retry tell", remove: "retry tell" }],
    ...[0, 301, 401, 408, 425, 429, 500, 502, 503, 504].map(
      (status) => [failure(status), { read: "retry", status: "retry", remove: "retry" }] as [KubeApiError, never],
    ),
  ])("%o", (error, expected) => {
    for (const call of ["read", "status", "remove"] as const) {
      const { next, tell } = reactionTo(call, error, "web");
      expect([call, tell ? `${next} tell` : next]).toEqual([call, expected[call]]);
    }
  });

  test("is only retried when it is a mistake of the agent's", () => {
    expect(reactionTo("status", new TypeError("no"), "web")).toEqual({ next: "retry", tell: false });
  });
});

describe("what is left out of a status that was refused", () => {
  const sent = ["phase", "conditions", "podIPs", "containerStatuses", "annotations"];
  const naming = (...fields: string[]) => failure(422, "Invalid", { causes: fields.map((field) => ({ field })) });

  test.each([
    ["status.podIPs", ["podIPs"]],
    ["status.podIPs[1].ip", ["podIPs"]],
    ["status.containerStatuses[0].state.terminated", ["containerStatuses"]],
    ["metadata.annotations", ["annotations"]],
    ["metadata.annotations[vmlet.dev/host]", ["annotations"]],
  ])("is what %s is about", (field, expected) => {
    expect(refusedFields(naming(field), sent)).toEqual(expected);
  });

  test("is all but phase and conditions when nothing that was sent is named", () => {
    const rest = ["podIPs", "containerStatuses", "annotations"];
    expect(refusedFields(naming("spec.nodeName", "status.hostIP", ""), sent)).toEqual(rest);
    expect(refusedFields(failure(413), sent)).toEqual(rest);
  });

  test("is everything when phase and conditions are refused as well", () => {
    expect(refusedFields(failure(400), ["phase", "conditions"])).toEqual(["phase", "conditions"]);
  });

  test("is nothing but the annotations when it is forbidden, whatever it says", () => {
    expect(refusedFields(failure(403), sent)).toEqual(["annotations"]);
    expect(refusedFields(failure(403), ["phase"])).toEqual([]);
  });
});
