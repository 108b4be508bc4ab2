/** Stands between the agent and its API server, and makes what it wants slow or fail: as a tenant's own admission webhook would. */
import { createServer, request, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";

export interface ApiProxy {
  readonly url: string;
  /**
   * Writes of objects in the namespace wait this long, until they are given up.
   * @param pattern of the path, for example `/events`; default: all
   */
  delayWrites(namespace: string, ms: number, pattern?: string): void;
  /** Writes of objects in the namespace whose path holds `pattern` are answered with this Status. */
  failWrites(namespace: string, pattern: string, status: { code: number; reason: string }): void;
  /** So are reads. */
  failReads(namespace: string, pattern: string, status: { code: number; reason: string }): void;
  /** All is well again, also for what waits. */
  relent(): void;
  close(): Promise<void>;
}

type Rule = { reads?: boolean; namespace: string; pattern: string } & (
  | { delayMs: number }
  | { code: number; reason: string }
);

/** @param target base address of the API server, plain HTTP */
export async function startApiProxy(target: string): Promise<ApiProxy> {
  const rules: Rule[] = [];
  const waiting = new Set<() => void>();
  const ruleOf = ({ method = "GET", url = "" }: IncomingMessage) =>
    rules.find(
      ({ reads = false, namespace, pattern }) =>
        reads === (method === "GET") && url.includes(`/namespaces/${namespace}/`) && url.includes(pattern),
    );
  const forward = (incoming: IncomingMessage, reply: ServerResponse) => {
    const outgoing = request(
      new URL(incoming.url ?? "/", target),
      { method: incoming.method, headers: incoming.headers, agent: false },
      (answer) => {
        reply.writeHead(answer.statusCode ?? 502, answer.headers);
        // A watch may have nothing to say for long, but it has begun.
        reply.flushHeaders();
        answer.pipe(reply);
      },
    );
    outgoing.on("error", () => reply.destroy());
    reply.on("close", () => outgoing.destroy());
    incoming.pipe(outgoing);
  };
  const server: Server = createServer((incoming, reply) => {
    const rule = ruleOf(incoming);
    if (rule === undefined) return forward(incoming, reply);
    if ("delayMs" in rule) {
      const goOn = () => {
        clearTimeout(timer);
        if (waiting.delete(goOn) && !reply.destroyed) forward(incoming, reply);
      };
      const timer = setTimeout(goOn, rule.delayMs);
      waiting.add(goOn);
      return;
    }
    incoming.resume();
    const { code, reason } = rule;
    reply.writeHead(code, { "content-type": "application/json" });
    reply.end(JSON.stringify({ kind: "Status", apiVersion: "v1", status: "Failure", code, reason, message: reason }));
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    delayWrites: (namespace, delayMs, pattern = "") => void rules.push({ namespace, pattern, delayMs }),
    failWrites: (namespace, pattern, status) => void rules.push({ namespace, pattern, ...status }),
    failReads: (namespace, pattern, status) => void rules.push({ reads: true, namespace, pattern, ...status }),
    relent() {
      rules.length = 0;
      for (const goOn of waiting) goOn();
    },
    close: () =>
      new Promise((resolve) => {
        server.close(() => resolve());
        server.closeAllConnections();
      }),
  };
}
