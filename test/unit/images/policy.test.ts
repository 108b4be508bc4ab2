/** The owner's containers-policy.json(5), for pulls. */
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { assertAccepted } from "../../../providers/local/images/policy.ts";
import { parseReference } from "../../../providers/local/images/reference.ts";

let dir: string;
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), "vmlet-policy-"));
});
afterEach(() => rmSync(dir, { recursive: true, force: true }));

const accept = [{ type: "insecureAcceptAnything" }];
const reject = [{ type: "reject" }];
const signed = [{ type: "signedBy", keyType: "GPGKeys", keyPath: "/k" }];
const judge = (image: string, policy: unknown) => {
  const file = join(dir, "policy.json");
  writeFileSync(file, typeof policy === "string" ? policy : JSON.stringify(policy));
  assertAccepted(image, parseReference(image), file);
};
const docker = (scopes: object) => ({ default: reject, transports: { docker: scopes } });

test("a host without one accepts every image", () =>
  expect(() => assertAccepted("a", parseReference("a"), join(dir, "none"))).not.toThrow());

test.each<[string, unknown]>([
  ["r.example/a/b:1", { default: accept }],
  ["r.example/a/b:1", docker({ "r.example/a/b:1": accept })],
  ["r.example/a/b:1", docker({ "r.example/a/b": accept })],
  ["r.example/a/b:1", docker({ "r.example/a": accept })],
  ["r.example/a/b:1", docker({ "r.example": accept })],
  ["r.in.example/a/b:1", docker({ "*.example": accept })],
  ["busybox", docker({ "docker.io/library": accept })],
  ["r.example/a/b:1", docker({ "": accept })],
  ["r.example/a/b:1", docker({ "r.example/a": accept, "r.example": reject })],
])("%s is accepted by %j", (image, policy) => expect(() => judge(image, policy)).not.toThrow());

test.each<[string, unknown, string]>([
  ["r.example/a/b:1", { default: reject }, "ErrImagePull"],
  ["r.example/a/b:1", docker({ "r.example/ab": accept, "*.r.example": accept }), "ErrImagePull"],
  ["r.example/a/b:1", { default: accept, transports: { docker: { "r.example": reject } } }, "ErrImagePull"],
  ["r.example/a/b:1", docker({ "r.example": signed }), "SignatureValidationFailed"],
  ["r.example/a/b:1", docker({ "r.example": [...accept, ...signed] }), "SignatureValidationFailed"],
  ["r.example/a/b:1", {}, "ErrImagePull"],
  ["r.example/a/b:1", "{", "ErrImagePull"],
])("%s is not accepted by %j", (image, policy, reason) =>
  expect(() => judge(image, policy)).toThrow(expect.objectContaining({ reason })),
);
