/**
 * Probes and hooks with their ports resolved. Commands of probes expand the container's literal env only, as in a
 * kubelet.
 */
import type { Container } from "../../kube/wire.ts";
import type { Handler, HttpAction, Probe } from "../../provider/machine.ts";
import type { Result } from "../../util/result.ts";
import { Budget, OverBudgetError, POD_LIMITS } from "../budget.ts";
import { expandWords } from "./expansion.ts";

type V1Probe = NonNullable<Container["livenessProbe"]>;
type V1Handler = NonNullable<NonNullable<Container["lifecycle"]>["postStart"]>;
type HandlerContainer = Pick<Container, "env" | "ports">;

/**
 * A probe as the machine runs it. Fails when it names a port that the container does not have, or its command passes
 * the budget.
 */
export function renderProbe(
  container: HandlerContainer,
  probe: V1Probe,
  budget = new Budget("the command of a probe", POD_LIMITS.processBytes),
): Result<Probe> {
  const handler: Handler = {};
  if (probe.exec) {
    const literal = new Map((container.env ?? []).map((variable) => [variable.name, variable.value ?? ""]));
    try {
      handler.exec = { command: expandWords(probe.exec.command ?? [], (name) => literal.get(name), budget) };
    } catch (thrown) {
      if (!(thrown instanceof OverBudgetError)) throw thrown;
      return { ok: false, message: thrown.message };
    }
  } else if (probe.httpGet) {
    const http = renderHttp(container, probe.httpGet);
    if (!http.ok) return http;
    handler.http = http.value;
  } else if (probe.tcpSocket) {
    const port = resolvePort(container, probe.tcpSocket.port);
    if (!port.ok) return port;
    handler.tcp = { port: port.value, ...(probe.tcpSocket.host && { host: probe.tcpSocket.host }) };
  } else if (probe.grpc) {
    handler.grpc = { port: probe.grpc.port, ...(probe.grpc.service && { service: probe.grpc.service }) };
  } else {
    return { ok: false, message: "missing probe handler" };
  }
  return {
    ok: true,
    value: {
      ...handler,
      initial_delay_s: probe.initialDelaySeconds ?? 0,
      period_s: positiveOr(probe.periodSeconds, 10),
      timeout_s: positiveOr(probe.timeoutSeconds, 1),
      success: positiveOr(probe.successThreshold, 1),
      failure: positiveOr(probe.failureThreshold, 3),
      ...(probe.terminationGracePeriodSeconds !== undefined && {
        termination_grace_s: probe.terminationGracePeriodSeconds,
      }),
    },
  };
}

/** A postStart or preStop hook; undefined when it does nothing. */
export function renderHook(container: HandlerContainer, hook: V1Handler): Result<Handler | undefined> {
  if (hook.exec) return { ok: true, value: { exec: { command: [...(hook.exec.command ?? [])] } } };
  if (hook.sleep) return { ok: true, value: { sleep: { seconds: hook.sleep.seconds } } };
  if (!hook.httpGet) return { ok: true, value: undefined };
  // An HTTP hook without a port means the scheme's usual one.
  const port = hook.httpGet.port;
  const http = renderHttp(container, port === "" ? { ...hook.httpGet, port: 80 } : hook.httpGet);
  return http.ok ? { ok: true, value: { http: http.value } } : http;
}

function renderHttp(container: HandlerContainer, action: NonNullable<V1Probe["httpGet"]>): Result<HttpAction> {
  const port = resolvePort(container, action.port);
  if (!port.ok) return port;
  const path = action.path ?? "/";
  const headers = action.httpHeaders ?? [];
  return {
    ok: true,
    value: {
      path: path.startsWith("/") ? path : `/${path}`,
      port: port.value,
      ...(action.host && { host: action.host }),
      ...(action.scheme && {
        scheme: action.scheme.toUpperCase() === "HTTPS" ? ("https" as const) : ("http" as const),
      }),
      ...(headers.length > 0 && { headers: headers.map(({ name, value }) => ({ name, value })) }),
    },
  };
}

/**
 * A port number, the name of one of the container's ports, or a number as text (pkg/probe `ResolveContainerPort`).
 * @internal
 */
export function resolvePort(container: Pick<Container, "ports">, port: unknown): Result<number> {
  const named = typeof port === "string" ? container.ports?.find((candidate) => candidate.name === port) : undefined;
  const number =
    named?.containerPort ?? (typeof port === "number" ? port : /^\d+$/.test(String(port)) ? Number(port) : undefined);
  if (number === undefined) return { ok: false, message: `port ${String(port)} not found` };
  if (!Number.isInteger(number) || number <= 0 || number > 65_535)
    return { ok: false, message: `invalid port number: ${number}` };
  return { ok: true, value: number };
}

function positiveOr(value: number | undefined, fallback: number): number {
  return value !== undefined && value > 0 ? value : fallback;
}
