import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { KubeConfig } from "@kubernetes/client-node";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { CredentialSource } from "../../../src/kube/credentials.ts";
import { KubeTransport } from "../../../src/kube/transport.ts";
import { silentLogger } from "../../../src/telemetry/logger.ts";
import { systemClock, type Clock } from "../../../src/util/clock.ts";
import { KubeServer, failure, json, type Handler } from "../../support/kube-server.ts";

let folder: string;
const open: (() => unknown)[] = [];
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), "kube-credentials-"));
});
afterEach(async () => {
  for (const close of open.splice(0).reverse()) await close();
  rmSync(folder, { recursive: true });
});

/** Real time that a test can push forward. */
function pushedClock(): Clock & { push(ms: number): void } {
  let aheadMs = 0;
  const timers = new Set<{ aimMs: number; callback: () => void }>();
  const monotonic = () => systemClock.monotonic() + aheadMs;
  return {
    ...systemClock,
    now: () => systemClock.now() + aheadMs,
    monotonic,
    after(ms, callback) {
      const timer = { aimMs: monotonic() + ms, callback };
      timers.add(timer);
      const cancel = systemClock.after(ms, () => timers.delete(timer) && callback());
      return () => (timers.delete(timer), cancel());
    },
    push(ms) {
      aheadMs += ms;
      for (const timer of timers) if (timer.aimMs <= monotonic() && timers.delete(timer)) timer.callback();
    },
  };
}

const granted = (token: string, extra: object = {}) =>
  JSON.stringify({
    kind: "ExecCredential",
    apiVersion: "client.authentication.k8s.io/v1",
    status: { token, ...extra },
  });

/** A plugin of a kubeconfig. Each run leaves a line in `runs`. */
function plugin(script: string, exec: object = {}) {
  const runs = join(folder, "runs");
  writeFileSync(runs, "");
  const user = {
    exec: {
      apiVersion: "client.authentication.k8s.io/v1",
      command: "/bin/sh",
      args: ["-c", `echo run >> ${runs}; ${script}`],
      ...exec,
    },
  };
  return { user, runs: () => readFileSync(runs, "utf8").length / 4 };
}

const print = (text: string) => `printf '%s' '${text}'`;

function source(user: object, clock: Clock = systemClock) {
  const kubeConfig = new KubeConfig();
  kubeConfig.loadFromClusterAndUser(
    { name: "k", server: "https://k:6443", skipTLSVerify: false },
    { name: "u", ...user },
  );
  return new CredentialSource(kubeConfig, clock);
}

async function transport(user: object, handler: Handler, clock: Clock = systemClock) {
  const server = await KubeServer.start(handler);
  const kube = new KubeTransport({ kubeConfig: server.kubeConfig({ user }), clock, logger: silentLogger });
  open.push(
    () => server.stop(),
    () => kube.close(),
  );
  return { server, kube };
}

const get = (extra: object = {}) => ({
  method: "GET" as const,
  path: "/api/v1/pods",
  signal: new AbortController().signal,
  ...extra,
});

describe("an exec plugin", () => {
  test("gives the token", async () => {
    const { user } = plugin(print(granted("t")));
    expect((await source(user).get()).headers).toEqual({ authorization: "Bearer t" });
  });

  test("gives a client certificate", async () => {
    const status = { clientCertificateData: "cert", clientKeyData: "key" };
    const { user } = plugin(print(granted("", status)));
    expect(await source(user).get()).toMatchObject({ headers: {}, tls: { cert: "cert", key: "key" } });
  });

  test("is told what asks for it, and of which cluster", async () => {
    const { user } = plugin(
      `${print('{"status":{"token":"')}; printf '%s' "$KUBERNETES_EXEC_INFO$E" | tr -d '"\\n'; ${print('"}}')}`,
      {
        env: [{ name: "E", value: "own" }],
        provideClusterInfo: true,
      },
    );
    const { authorization } = (await source(user).get()).headers;
    expect(authorization).toContain("apiVersion:client.authentication.k8s.io/v1");
    expect(authorization).toContain("interactive:false");
    expect(authorization).toContain("server:https://k:6443");
    expect(authorization).toMatch(/own$/);
  });

  test("is run again only when what it gave has expired", async () => {
    const clock = pushedClock();
    const expirationTimestamp = new Date(clock.now() + 3_600_000).toISOString();
    const { user, runs } = plugin(print(granted("t", { expirationTimestamp })));
    const credentials = source(user, clock);
    await credentials.get();
    clock.push(3_000_000);
    await credentials.get();
    expect(runs()).toBe(1);
    clock.push(700_000);
    await credentials.get();
    expect(runs()).toBe(2);
  });

  test("is left alone when the kubeconfig has a token", async () => {
    const { user, runs } = plugin(print(granted("t")));
    expect((await source({ ...user, token: "static" }).get()).headers).toEqual({ authorization: "Bearer static" });
    expect(runs()).toBe(0);
  });

  test.each([
    ["exits with a code", "echo no login >&2; exit 3", /exec plugin \/bin\/sh failed: it exited with code 3: no login/],
    ["says nothing", "true", /did not answer with JSON/],
    ["gives nothing", print('{"kind":"ExecCredential","status":{}}'), /neither a token nor a certificate/],
    ["gives half a certificate", print('{"status":{"clientKeyData":"k"}}'), /only one of certificate and key/],
    ["answers something else", print('{"kind":"Secret","status":{"token":"canary"}}'), /not an ExecCredential: kind/],
    ["speaks another version", print('{"apiVersion":"v0","status":{"token":"t"}}'), /answered with v0/],
  ])("that %s is named with the reason", async (_name, script, message) => {
    const failed = source(plugin(script).user).get();
    await expect(failed).rejects.toThrow(message);
    await expect(failed).rejects.not.toThrow(/canary/);
  });

  test("that is not there is named with its install hint", async () => {
    const { user } = plugin("", { command: "/nowhere/login", installHint: "ask the cloud team" });
    await expect(source(user).get()).rejects.toThrow(/\/nowhere\/login failed: .*ENOENT; ask the cloud team/);
  });

  test("that fails is not run for each request", async () => {
    const { user, runs } = plugin("exit 1");
    const credentials = source(user);
    for (let i = 0; i < 5; i++) await expect(credentials.get()).rejects.toThrow("code 1");
    expect(runs()).toBe(1);
  });
});

describe("an exec plugin that hangs", () => {
  const hanging = () => plugin("sleep 60");

  test("ends a request when its time is up", async () => {
    const { kube } = await transport(hanging().user, () => {});
    await expect(kube.request(get({ timeoutMs: 100 }))).rejects.toMatchObject({ reason: "Timeout" });
  });

  test("lets go of a request that is aborted", async () => {
    const { kube } = await transport(hanging().user, () => {});
    const abort = new AbortController();
    const call = kube.request(get({ signal: abort.signal }));
    abort.abort(new Error("shutting down"));
    await expect(call).rejects.toThrow("shutting down");
  });

  test("lets a watch end when it is aborted", async () => {
    const { kube } = await transport(hanging().user, () => {});
    const abort = new AbortController();
    const watching = kube.watch({ path: "/api/v1/pods", signal: abort.signal }).next();
    abort.abort(new Error("shutting down"));
    await expect(watching).rejects.toThrow("shutting down");
  });

  test("is ended when the transport is closed", async () => {
    const pidFile = join(folder, "pid");
    const { kube } = await transport(plugin(`echo $$ > ${pidFile}; exec sleep 60`).user, () => {});
    const call = kube.request(get());
    await expect.poll(() => existsSync(pidFile) && readFileSync(pidFile, "utf8") !== "").toBe(true);
    await Promise.all([expect(call).rejects.toThrow("the transport was closed"), kube.close()]);
    await expect.poll(() => existsSync(`/proc/${readFileSync(pidFile, "utf8").trim()}`)).toBe(false);
  });

  test("stops nothing while what it gave before is not refused", async () => {
    const clock = pushedClock();
    const expirationTimestamp = new Date(clock.now() + 60_000).toISOString();
    const once = join(folder, "once");
    const { user, runs } = plugin(
      `[ -e ${once} ] && sleep 1000; touch ${once}; ${print(granted("t", { expirationTimestamp }))}`,
    );
    const { kube } = await transport(user, (_request, reply) => json(reply, 200, { ok: true }), clock);
    await kube.request(get());
    clock.push(120_000);
    // The first that finds it expired gives the plugin some seconds.
    const waiting = kube.request(get({ timeoutMs: 20 })).catch(() => "in time or not");
    await expect.poll(runs).toBe(2);
    clock.push(6_000);
    expect(await kube.request(get())).toEqual({ ok: true });
    await waiting;
  });
});

describe("credentials that the API server refuses", () => {
  const refusing: Handler = (_request, reply) => json(reply, 401, failure(401, "Unauthorized"));

  test("do not make an exec plugin run again and again", async () => {
    const clock = pushedClock();
    const { user, runs } = plugin(print(granted("t")));
    const { kube } = await transport(user, refusing, clock);
    for (let i = 0; i < 20; i++) await expect(kube.request(get())).rejects.toMatchObject({ status: 401 });
    expect(runs()).toBe(2);
    clock.push(11_000);
    for (let i = 0; i < 20; i++) await expect(kube.request(get())).rejects.toMatchObject({ status: 401 });
    expect(runs()).toBe(3);
  });

  test("are replaced by what the plugin gives next", async () => {
    const { user } = plugin(
      `[ -e ${join(folder, "once")} ] && n=2; touch ${join(folder, "once")}; printf '{"status":{"token":"t%s"}}' "$n"`,
    );
    const { kube } = await transport(user, (request, reply) =>
      request.headers.authorization === "Bearer t2" ? json(reply, 200, { ok: true }) : refusing(request, reply),
    );
    expect(await kube.request(get())).toEqual({ ok: true });
  });

  test("are not read again because of a request that was sent with older ones", async () => {
    const { user, runs } = plugin(print(granted("t")));
    const credentials = source(user);
    const first = await credentials.get();
    credentials.refuse(first);
    await credentials.get();
    credentials.refuse(first);
    await credentials.get();
    expect(runs()).toBe(2);
  });
});
