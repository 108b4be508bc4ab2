/** A collector of traces on loopback: OTLP over HTTP, kept in memory. */
import { createServer, type IncomingHttpHeaders, type Server, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";

export interface CollectedSpan {
  name: string;
  kind: number;
  traceId: string;
  spanId: string;
  parentSpanId?: string;
  traceState?: string;
  status: { code: number };
  links: { traceId: string; spanId: string }[];
  startTimeUnixNano: string;
  endTimeUnixNano: string;
  /** By name. */
  attributes: Record<string, unknown>;
  /** Of the program. */
  resource: Record<string, unknown>;
}

interface KeyValue {
  key: string;
  value: Record<string, unknown>;
}
interface ExportRequest {
  resourceSpans: {
    resource: { attributes: KeyValue[] };
    scopeSpans: { spans: (Omit<CollectedSpan, "attributes" | "resource"> & { attributes: KeyValue[] })[] }[];
  }[];
}

const byName = (attributes: KeyValue[]): Record<string, unknown> =>
  Object.fromEntries(attributes.map(({ key, value }) => [key, Object.values(value)[0]]));

export class OtlpCollector implements AsyncDisposable {
  readonly spans: CollectedSpan[] = [];
  readonly requests: { path: string; headers: IncomingHttpHeaders }[] = [];
  /** How it answers; default: it takes everything. */
  answer: (reply: ServerResponse) => void = (reply) => void reply.end("{}");
  readonly #server: Server;
  readonly #waiting = new Set<() => void>();

  private constructor() {
    this.#server = createServer((request, response) => {
      const chunks: Buffer[] = [];
      request.on("data", (chunk: Buffer) => void chunks.push(chunk));
      request.on("end", () => {
        this.requests.push({ path: request.url ?? "", headers: request.headers });
        this.#keep(JSON.parse(Buffer.concat(chunks).toString()) as ExportRequest);
        this.answer(response);
        for (const each of this.#waiting) each();
      });
    });
  }

  static async open(): Promise<OtlpCollector> {
    const collector = new OtlpCollector();
    await new Promise<void>((resolve) => collector.#server.listen(0, "127.0.0.1", resolve));
    return collector;
  }

  get endpoint(): string {
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  /** Resolves when what it has is enough. */
  async until(isEnough: (collector: this) => boolean): Promise<void> {
    const { promise, resolve } = Promise.withResolvers<void>();
    const look = () => isEnough(this) && resolve();
    this.#waiting.add(look);
    look();
    await promise;
    this.#waiting.delete(look);
  }

  parentOf({ traceId, parentSpanId }: CollectedSpan): CollectedSpan | undefined {
    return this.spans.find((each) => each.traceId === traceId && each.spanId === parentSpanId);
  }

  /** The names of the span's ancestors, its own last. */
  wayTo(span: CollectedSpan): string[] {
    const parent = this.parentOf(span);
    return [...(parent === undefined ? [] : this.wayTo(parent)), span.name];
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#server.closeAllConnections();
    await new Promise((resolve) => this.#server.close(resolve));
  }

  #keep({ resourceSpans }: ExportRequest): void {
    for (const { resource, scopeSpans } of resourceSpans)
      for (const { spans } of scopeSpans)
        for (const span of spans)
          this.spans.push({ ...span, attributes: byName(span.attributes), resource: byName(resource.attributes) });
  }
}
