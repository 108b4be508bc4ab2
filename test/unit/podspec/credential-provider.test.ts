import { chmod, mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { credentialProviderConfig } from "../../../src/config/credential-providers.ts";
import {
  ExecCredentials,
  matchesImage,
  runPlugin,
  type RunPlugin,
} from "../../../src/podspec/references/credential-provider.ts";
import type { Pod } from "../../../src/kube/wire.ts";
import { tokenKey } from "../../../src/podspec/types.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { settle, VirtualClock } from "../../support/virtual-clock.ts";
import { found, podWith } from "./fixtures.ts";

const signal = new AbortController().signal;

function reply(fields: object = {}): string {
  return JSON.stringify({
    kind: "CredentialProviderResponse",
    apiVersion: "credentialprovider.kubelet.k8s.io/v1",
    cacheKeyType: "Registry",
    auth: { "*.reg.example": { username: "u", password: "p" } },
    ...fields,
  });
}

function credentials(
  answer: () => string | Promise<string>,
  provider: object = {},
  issue = (audience: string, _pod: Pod) => `token for ${audience}`,
) {
  const calls: { file: string; request: Record<string, unknown>; env: Readonly<Record<string, string>> }[] = [];
  const clock = new VirtualClock();
  const signals: AbortSignal[] = [];
  const run: RunPlugin = async (plugin, input, until) => {
    signals.push(until);
    calls.push({ file: plugin.file, request: JSON.parse(input) as Record<string, unknown>, env: plugin.env });
    return answer();
  };
  const config = credentialProviderConfig.parse({
    apiVersion: "kubelet.config.k8s.io/v1",
    kind: "CredentialProviderConfig",
    providers: [
      {
        name: "cloud",
        matchImages: ["*.reg.example"],
        defaultCacheDuration: "10m",
        apiVersion: "credentialprovider.kubelet.k8s.io/v1",
        env: [{ name: "E", value: "1" }],
        ...provider,
      },
    ],
  });
  const tokens = {
    get: async (pod: Pod, wishes: readonly Parameters<typeof tokenKey>[0][]) =>
      new Map(wishes.map((wish) => [tokenKey(wish), found(issue(wish.audience, pod))])),
  };
  return {
    calls,
    signals,
    clock,
    source: new ExecCredentials({
      config,
      binDir: "/plugins",
      environment: { PATH: "/bin" },
      tokens,
      clock,
      logger: silentLogger,
      run,
    }),
  };
}

const podOf = (...images: string[]) => podWith({ containers: images.map((image, i) => ({ name: `c${i}`, image })) });

describe("ExecCredentials", () => {
  test("asks the plugin that matches the image", async () => {
    const { source, calls } = credentials(() => reply());
    expect(await source.forPod(podOf("eu.reg.example/app:1", "nginx"), signal)).toEqual([
      { registry: "*.reg.example", username: "u", password: "p" },
    ]);
    expect(calls).toEqual([
      {
        file: "/plugins/cloud",
        request: {
          kind: "CredentialProviderRequest",
          apiVersion: "credentialprovider.kubelet.k8s.io/v1",
          image: "eu.reg.example/app:1",
        },
        env: { PATH: "/bin", E: "1" },
      },
    ]);
  });

  test.each([
    ["Image", 3],
    ["Registry", 2],
    ["Global", 1],
  ])("asks as often as cache key %s needs", async (cacheKeyType, times) => {
    const { source, calls } = credentials(() => reply({ cacheKeyType }));
    await source.forPod(podOf("eu.reg.example/a", "eu.reg.example/b", "us.reg.example/a"), signal);
    expect(calls).toHaveLength(times);
  });

  test("asks again when the cache is too old", async () => {
    const { source, calls, clock } = credentials(() => reply({ cacheDuration: "1h" }));
    await source.forPod(podOf("eu.reg.example/a"), signal);
    await clock.advance(3_599_999);
    await source.forPod(podOf("eu.reg.example/a"), signal);
    expect(calls).toHaveLength(1);
    await clock.advance(1);
    await source.forPod(podOf("eu.reg.example/a"), signal);
    expect(calls).toHaveLength(2);
  });

  test("hands the pod's own identity over where the plugin wants it", async () => {
    const tokenAttributes = { serviceAccountTokenAudience: "cloud", cacheType: "ServiceAccount" };
    const { source, calls } = credentials(() => reply(), { tokenAttributes });
    await source.forPod(podOf("eu.reg.example/a"), signal);
    expect(calls[0]?.request["serviceAccountToken"]).toBe("token for cloud");
  });

  describe("for an account", () => {
    const tokenAttributes = { serviceAccountTokenAudience: "cloud", cacheType: "ServiceAccount" };
    const jwt = (uid: string) => {
      const claims = { "kubernetes.io": { serviceaccount: { name: "default", uid } } };
      return `h.${Buffer.from(JSON.stringify(claims)).toString("base64url")}.s`;
    };
    const podOfUid = (uid: string) => podWith({ containers: [{ name: "app", image: "eu.reg.example/a" }] }, { uid });

    test("are shared by its pods", async () => {
      const { source, calls } = credentials(
        () => reply(),
        { tokenAttributes },
        () => jwt("sa-1"),
      );
      await source.forPod(podOfUid("p1"), signal);
      await source.forPod(podOfUid("p2"), signal);
      expect(calls).toHaveLength(1);
    });

    test("are not those of an account of the same name that was there before", async () => {
      let account = "sa-1";
      const { source, calls } = credentials(
        () => reply(),
        { tokenAttributes },
        () => jwt(account),
      );
      await source.forPod(podOfUid("p1"), signal);
      account = "sa-2";
      await source.forPod(podOfUid("p2"), signal);
      expect(calls).toHaveLength(2);
    });

    test("are each pod's own where nobody says which account it is", async () => {
      const { source, calls } = credentials(() => reply(), { tokenAttributes });
      await source.forPod(podOfUid("p1"), signal);
      await source.forPod(podOfUid("p2"), signal);
      expect(calls).toHaveLength(2);
    });

    test("are not its token", async () => {
      const auth = { "*.reg.example": { username: "u", password: jwt("sa-1") } };
      const { source } = credentials(
        () => reply({ auth }),
        { tokenAttributes },
        () => jwt("sa-1"),
      );
      expect(await source.forPod(podOfUid("p1"), signal)).toEqual([]);
    });
  });

  describe("of many pods at once", () => {
    test("are asked for once", async () => {
      const answer = Promise.withResolvers<string>();
      const { source, calls } = credentials(() => answer.promise);
      const all = Promise.all(Array.from({ length: 32 }, () => source.forPod(podOf("eu.reg.example/a"), signal)));
      await settle();
      answer.resolve(reply());
      expect((await all).every((auth) => auth.length === 1)).toBe(true);
      expect(calls).toHaveLength(1);
    });

    test("come though the one who asked first gives up", async () => {
      const answer = Promise.withResolvers<string>();
      const { source } = credentials(() => answer.promise);
      const impatient = new AbortController();
      const first = source.forPod(podOf("eu.reg.example/a"), impatient.signal);
      const second = source.forPod(podOf("eu.reg.example/a"), signal);
      await settle();
      impatient.abort(new Error("gave up"));
      await expect(first).rejects.toThrow("gave up");
      answer.resolve(reply());
      expect(await second).toHaveLength(1);
    });

    test("are asked for no more when all give up", async () => {
      const { source, signals } = credentials(() => new Promise(() => {}));
      const impatient = new AbortController();
      const asked = [1, 2].map(() => source.forPod(podOf("eu.reg.example/a"), impatient.signal));
      await settle();
      impatient.abort(new Error("gave up"));
      await Promise.allSettled(asked);
      expect(signals.map(({ aborted }) => aborted)).toEqual([true]);
    });
  });

  test.each(["not json", "{}", reply({ apiVersion: "credentialprovider.kubelet.k8s.io/v1alpha1" })])(
    "goes on without credentials when the answer is %j",
    async (answer) => {
      const { source } = credentials(() => answer);
      expect(await source.forPod(podOf("eu.reg.example/a"), signal)).toEqual([]);
    },
  );
});

describe("matchesImage", () => {
  test.each([
    ["*.reg.example", "eu.reg.example/app", true],
    ["*.reg.example", "reg.example/app", false],
    ["*.reg.example", "a.b.reg.example/app", false],
    ["*.*.reg.example", "a.b.reg.example/app", true],
    ["reg*.io", "registry.io/x", true],
    ["reg.io:5000", "reg.io:5000/x", true],
    ["reg.io", "reg.io:5000/x", false],
    ["reg.io/team", "reg.io/team/app", true],
    ["reg.io/team", "reg.io/other", false],
    ["reg.io", "regXio/a", false],
  ])("%s and %s: %s", (glob, image, expected) => {
    expect(matchesImage(glob, image)).toBe(expected);
  });
});

describe("runPlugin", () => {
  let folder: string;
  beforeAll(async () => {
    folder = await mkdtemp(join(tmpdir(), "vmlet-plugin-"));
    for (const [name, script] of [
      ["echo", 'printf "%s/%s/" "$1" "$E"; cat'],
      ["fail", "echo broken >&2; exit 3"],
      ["hang", "exec sleep 60"],
    ] as const) {
      await writeFile(join(folder, name), `#!/bin/sh\n${script}\n`);
      await chmod(join(folder, name), 0o755);
    }
  });
  afterAll(() => rm(folder, { recursive: true }));

  const run = (name: string, runSignal = signal) =>
    runPlugin(
      { file: join(folder, name), args: ["arg"], env: { PATH: "/usr/bin:/bin", E: "env" } },
      "input",
      runSignal,
    );

  test("gives it arguments, environment and input, and returns its output", async () => {
    expect(await run("echo")).toBe("arg/env/input");
  });

  test("reports that it was killed, and how long it may take", async () => {
    const plugin = { file: "/bin/sh", args: ["-c", "echo slow >&2; kill -KILL $$"], env: {} };
    await expect(runPlugin(plugin, "input", signal)).rejects.toThrow(
      "it was killed by SIGKILL (it may take 60 s): slow",
    );
  });

  test("reports its exit code and complaint", async () => {
    await expect(run("fail")).rejects.toThrow("it exited with code 3: broken");
  });

  test("reports that it is not there", async () => {
    await expect(run("ghost")).rejects.toThrow("ENOENT");
  });

  test("ends it when the signal aborts", async () => {
    const controller = new AbortController();
    const running = run("hang", controller.signal);
    controller.abort();
    await expect(running).rejects.toThrow("aborted");
  });
});
