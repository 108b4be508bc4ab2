import { describe, expect, test } from "vitest";
import { MemoryProvider } from "../../../providers/memory/provider.ts";
import { PodSecrets, withoutSecrets } from "../../../src/podspec/references/pod-secrets.ts";
import { REDACTED } from "../../../src/podspec/references/redaction.ts";
import { ProviderError } from "../../../src/provider/errors.ts";
import type { Machine } from "../../../src/provider/machine.ts";
import { base64, found, podWith, referencesWith, secret } from "./fixtures.ts";

const pod = podWith({ imagePullSecrets: [{ name: "pull" }] });
const references = referencesWith({
  secrets: {
    db: secret({ password: "hunter2-hunter2" }),
    pull: secret(
      { ".dockerconfigjson": JSON.stringify({ auths: { "r.example": { auth: base64("robot:registry-password") } } }) },
      "kubernetes.io/dockerconfigjson",
    ),
  },
  tokens: { "3600/": found("header.claims-of-the-token.signature") },
});

function secrets(): PodSecrets {
  const known = new PodSecrets();
  known.learn(pod, references, "1");
  return known;
}

describe("what a pod was given", () => {
  test.each([
    ["a Secret's value", "bad env DB=hunter2-hunter2"],
    ["a registry's password", "401 for robot:registry-password"],
    ["a registry's credentials as they are sent", `401 for Basic ${base64("robot:registry-password")}`],
    ["a token", "cannot write header.claims-of-the-token.signature"],
  ])("is in no text about it: %s", (_, text) => {
    const redacted = secrets().redact("0a1b", text);
    expect(redacted).toContain(REDACTED);
    for (const value of ["hunter2", "registry-password", "claims", base64("robot:registry-password").slice(8, 24)])
      expect(redacted).not.toContain(value);
  });

  test("is no secret of another pod", () => {
    expect(secrets().redact("another", "hunter2-hunter2")).toBe("hunter2-hunter2");
  });

  test("is remembered when it has changed: what runs may have the old value", () => {
    const known = secrets();
    known.learn(pod, referencesWith({ secrets: { db: secret({ password: "a-new-password" }) } }), "2");
    expect(known.redact("0a1b", "hunter2-hunter2, a-new-password")).toBe(`${REDACTED}, ${REDACTED}`);
  });

  test("from a plugin counts, too", () => {
    const known = new PodSecrets();
    known.learnCredentials(pod, [{ registry: "r", username: "u", password: "from-the-plugin" }]);
    expect(known.redact("0a1b", "from-the-plugin")).toBe(REDACTED);
  });

  test("is forgotten with the pod", () => {
    const known = secrets();
    known.release("0a1b");
    expect([known.knows("0a1b"), known.redact("0a1b", "hunter2-hunter2")]).toEqual([false, "hunter2-hunter2"]);
  });
});

describe("a machine", () => {
  const said = "hunter2-hunter2";
  const machine: Machine = {
    id: "m",
    version: 1,
    revision: 1,
    labels: {},
    state: "failed",
    message: said,
    reachability: "ok",
    sandbox_ready: true,
    created_at: "2026-01-01T00:00:00.000Z",
    addresses: [],
    containers: [
      {
        name: "app",
        kind: "main",
        state: "terminated",
        message: said,
        ready: false,
        started: false,
        restart_count: 1,
        image: "nginx",
        image_id: "",
        terminated: { exit_code: 1, reason: "Error", message: said, finished_at: "2026-01-01T00:00:00.000Z" },
        last: { exit_code: 1, reason: "Error", message: said, finished_at: "2026-01-01T00:00:00.000Z" },
      },
    ],
    notices: [{ at: "2026-01-01T00:00:00.000Z", type: "Warning", reason: "Failed", message: said, seq: 1 }],
  };

  test("quotes nothing of it in any of its texts, and keeps all else", () => {
    const cleaned = secrets().clean("0a1b", machine);
    expect(JSON.stringify(cleaned)).toBe(JSON.stringify(machine).replaceAll(said, REDACTED));
  });

  test("is cleaned once", () => {
    const known = secrets();
    expect(known.clean("0a1b", machine)).toBe(known.clean("0a1b", machine));
    const { message: _, notices: _none, ...rest } = machine;
    const silent = { ...rest, containers: [] };
    expect(known.clean("0a1b", silent)).toBe(silent);
  });
});

test("an error about a machine quotes nothing of it, in its message nor in its stack", async () => {
  const known = secrets();
  const provider = new MemoryProvider();
  provider.createPod = async () => {
    throw new ProviderError("invalid", "env DB: hunter2-hunter2 is not allowed", { field: "containers[0].env" });
  };
  const redacting = withoutSecrets(provider, (id, text) => known.redact(id === "m" ? "0a1b" : "", text));
  const spec = { labels: {}, containers: [], restart_policy: "never" as const, termination_grace_s: 0 };
  const signal = new AbortController().signal;
  const error = await redacting.createPod("m", spec, { signal }).catch((thrown: unknown) => thrown as ProviderError);
  expect(error).toMatchObject({
    code: "invalid",
    field: "containers[0].env",
    message: `env DB: ${REDACTED} is not allowed`,
  });
  expect((error as Error).stack).not.toContain("hunter2");
  await provider.close();
});
