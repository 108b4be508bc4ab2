import { describe, expect, test } from "vitest";
import { renderHook, renderProbe, resolvePort } from "../../../src/podspec/render/handlers.ts";

const container = { env: [{ name: "A", value: "$(B)" }], ports: [{ name: "http", containerPort: 8080 }] };

describe("renderProbe", () => {
  test("resolves named ports and fills in the defaults", () => {
    const httpGet = { path: "health", port: "http", scheme: "HTTPS", httpHeaders: [{ name: "X", value: "1" }] };
    expect(renderProbe(container, { httpGet })).toEqual({
      ok: true,
      value: {
        http: { path: "/health", port: 8080, scheme: "https", headers: [{ name: "X", value: "1" }] },
        initial_delay_s: 0,
        period_s: 10,
        timeout_s: 1,
        success: 1,
        failure: 3,
      },
    });
  });

  test("expands commands over the literal env only, once", () => {
    expect(renderProbe(container, { exec: { command: ["$(A)", "$(HOME)"] } })).toMatchObject({
      value: { exec: { command: ["$(B)", "$(HOME)"] } },
    });
  });

  test("carries a grace period of its own", () => {
    expect(renderProbe(container, { tcpSocket: { port: 1 }, terminationGracePeriodSeconds: 5 })).toMatchObject({
      value: { tcp: { port: 1 }, termination_grace_s: 5 },
    });
  });

  test("carries the service of a grpc probe", () => {
    expect(renderProbe(container, { grpc: { port: 9, service: "s" } })).toMatchObject({
      value: { grpc: { port: 9, service: "s" } },
    });
  });

  test("fails for a port that the container does not have", () => {
    expect(renderProbe(container, { tcpSocket: { port: "ghost" } })).toEqual({
      ok: false,
      message: "port ghost not found",
    });
  });
});

describe("renderHook", () => {
  test.each([
    [{ exec: { command: ["$(A)"] } }, { exec: { command: ["$(A)"] } }],
    [{ sleep: { seconds: 0 } }, { sleep: { seconds: 0 } }],
    [{ httpGet: { port: "http" } }, { http: { path: "/", port: 8080 } }],
    [{ tcpSocket: { port: 1 } }, undefined],
  ])("renders %j", (hook, value) => {
    expect(renderHook(container, hook)).toEqual({ ok: true, value });
  });
});

describe("resolvePort", () => {
  test.each([
    [80, 80],
    ["http", 8080],
    ["81", 81],
  ])("resolves %j to %d", (port, value) => {
    expect(resolvePort(container, port)).toEqual({ ok: true, value });
  });

  test("refuses a number that is no port", () => {
    expect(resolvePort(container, 70_000)).toEqual({ ok: false, message: "invalid port number: 70000" });
  });
});
