/**
 * Traces by OpenTelemetry's SDK. Nothing of it is registered for the process: what is traced, and by whom it is called,
 * is known here alone. Loaded only where traces are configured.
 */
import { AsyncLocalStorage } from "node:async_hooks";
import {
  createTraceState,
  ROOT_CONTEXT,
  type Span as SdkSpan,
  SpanKind,
  SpanStatusCode,
  trace,
  TraceFlags,
  type Context,
  type SpanContext,
  type Tracer,
} from "@opentelemetry/api";
import {
  BatchSpanProcessor,
  ParentBasedSampler,
  TraceIdRatioBasedSampler,
  TracerProvider,
} from "@opentelemetry/sdk-trace";
import { pause } from "../util/abort.ts";
import type { Clock } from "../util/clock.ts";
import { OtlpExporter, type OtlpOptions } from "./otlp-exporter.ts";
import { formatTraceParent, parseTraceParent, type TraceContext } from "./trace-context.ts";
import type { Attributes, Span, SpanOptions, Tracing } from "./tracing.ts";

interface SdkTracingOptions extends OtlpOptions {
  samplingRatePerMillion: number;
}

/** Spans that wait for the collector; beyond that they are dropped. */
const MAX_QUEUE = 2048;
const MAX_BATCH = 512;
const EXPORT_EVERY_MS = 5_000;
/** More than all tries of the exporter take. */
const EXPORT_MS = 30_000;
const FLUSH_MS = 2_000;
const LIMITS = { attributeCountLimit: 32, attributeValueLengthLimit: 256, linkCountLimit: 4, eventCountLimit: 0 };

const KINDS = { client: SpanKind.CLIENT, server: SpanKind.SERVER };

export class SdkTracing implements Tracing {
  readonly #exporter: OtlpExporter;
  readonly #provider: TracerProvider;
  readonly #tracer: Tracer;
  readonly #active = new AsyncLocalStorage<OpenSpan>();
  readonly #clock: Clock;

  private constructor(options: SdkTracingOptions, exporter: OtlpExporter) {
    this.#clock = options.clock;
    this.#exporter = exporter;
    this.#provider = new TracerProvider({
      sampler: new ParentBasedSampler({ root: new TraceIdRatioBasedSampler(options.samplingRatePerMillion / 1e6) }),
      spanLimits: LIMITS,
      spanProcessors: [
        new BatchSpanProcessor({
          exporter,
          maxQueueSize: MAX_QUEUE,
          maxExportBatchSize: MAX_BATCH,
          scheduledDelayMillis: EXPORT_EVERY_MS,
          exportTimeoutMillis: EXPORT_MS,
        }),
      ],
    });
    this.#tracer = this.#provider.getTracer("vmlet", options.version);
  }

  /** @throws Error when a file cannot be used */
  static async open(options: SdkTracingOptions): Promise<SdkTracing> {
    const exporter = new OtlpExporter(options);
    await exporter.check();
    return new SdkTracing(options, exporter);
  }

  begin(name: string, { kind, parent, link, attributes }: SpanOptions): Span {
    const linked = link && spanContextOf(link);
    const span = this.#tracer.startSpan(
      name,
      {
        kind: kind === undefined ? SpanKind.INTERNAL : KINDS[kind],
        attributes: { ...attributes },
        links: linked === undefined ? [] : [{ context: linked }],
      },
      contextOf(parent),
    );
    return new OpenSpan(span);
  }

  within<T>(span: Span, work: () => T): T {
    return span instanceof OpenSpan ? this.#active.run(span, work) : work();
  }

  active(): TraceContext | undefined {
    const span = this.#active.getStore();
    // What was begun within it and goes on for ever, as a watch, is none of its work any more.
    return span === undefined || span.hasEnded ? undefined : span.context;
  }

  async close(): Promise<void> {
    const flushed = new AbortController();
    const late = pause(this.#clock, FLUSH_MS, flushed.signal);
    const flushing = this.#provider.shutdown().catch(() => undefined);
    await Promise.race([flushing, late]);
    flushed.abort();
    this.#exporter.abandon();
  }
}

class OpenSpan implements Span {
  readonly #span: SdkSpan;
  readonly context: TraceContext;
  hasEnded = false;

  constructor(span: SdkSpan) {
    this.#span = span;
    const { traceId, spanId, traceFlags, traceState } = span.spanContext();
    const isSampled = (traceFlags & TraceFlags.SAMPLED) !== 0;
    const state = traceState?.serialize() ?? "";
    this.context = {
      traceparent: formatTraceParent({ traceId, spanId, isSampled }),
      ...(state !== "" && { tracestate: state }),
    };
  }

  set(attributes: Attributes): void {
    for (const [key, value] of Object.entries(attributes)) if (value !== undefined) this.#span.setAttribute(key, value);
  }

  fail(type: string): void {
    this.#span.setStatus({ code: SpanStatusCode.ERROR });
    this.#span.setAttribute("error.type", type);
  }

  end(): void {
    this.hasEnded = true;
    this.#span.end();
  }
}

function contextOf(parent: TraceContext | undefined): Context {
  const context = parent && spanContextOf(parent);
  return context === undefined ? ROOT_CONTEXT : trace.setSpanContext(ROOT_CONTEXT, context);
}

function spanContextOf({ traceparent, tracestate }: TraceContext): SpanContext | undefined {
  const parent = parseTraceParent(traceparent);
  if (parent === undefined) return undefined;
  const { traceId, spanId, isSampled } = parent;
  return {
    traceId,
    spanId,
    traceFlags: isSampled ? TraceFlags.SAMPLED : TraceFlags.NONE,
    isRemote: true,
    ...(tracestate !== undefined && { traceState: createTraceState(tracestate) }),
  };
}
