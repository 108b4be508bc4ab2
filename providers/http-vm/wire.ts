/** What both ends of the Machine API have to agree on beyond the schemas: status codes, channels, log framing. */
import { type LogLine, ProviderError, type ProviderErrorCode } from "../../src/provider/kit/index.ts";
import type { Schemas } from "../../src/provider/contract/document.ts";
import { plainText } from "./validate.ts";

export const STATUS_OF_CODE: Readonly<Record<ProviderErrorCode, number>> = {
  invalid: 400,
  unauthorized: 401,
  not_found: 404,
  conflict: 409,
  in_use: 409,
  out_of_zone: 409,
  gone: 410,
  rate_limited: 429,
  unsupported: 501,
  quota: 503,
  unavailable: 503,
};

export const JSON_TYPE = "application/json";
export const LOG_TYPE = "text/x-cri-log";
export const EVENT_STREAM_TYPE = "text/event-stream";
export const EXEC_PROTOCOL = "v5.channel.k8s.io";

export const CHANNEL = { stdin: 0, stdout: 1, stderr: 2, status: 3, resize: 4, halfClose: 255 } as const;

/** Largest WebSocket message that either side takes. */
export const MAX_MESSAGE_BYTES = 1024 * 1024;
/** Largest piece that either side puts into one message. */
export const CHUNK_BYTES = 64 * 1024;
/** Largest log record that a client takes, newline included. */
export const MAX_LOG_RECORD_BYTES = 1024 * 1024;

export function channelMessage(channel: number, payload: Uint8Array | string): Buffer {
  const body = typeof payload === "string" ? Buffer.from(payload) : payload;
  const message = Buffer.allocUnsafe(body.length + 1);
  message[0] = channel;
  message.set(body, 1);
  return message;
}

/** The part of Kubernetes' metav1.Status that exec uses. */
interface ExecStatus {
  metadata?: object;
  status?: string;
  reason?: string;
  message?: string;
  code?: number;
  details?: { causes?: { reason?: string; message?: string }[] };
}

/** Our own cause, beside Kubernetes' ExitCode: the ProviderError's code of a session that broke. */
const CODE_CAUSE = "ProviderErrorCode";

export function statusOfExit(exitCode: number): string {
  const status: ExecStatus =
    exitCode === 0
      ? { metadata: {}, status: "Success" }
      : {
          metadata: {},
          status: "Failure",
          reason: "NonZeroExitCode",
          message: `command terminated with non-zero exit code: ${exitCode}`,
          details: { causes: [{ reason: "ExitCode", message: String(exitCode) }] },
        };
  return JSON.stringify(status);
}

export function statusOfFailure(error: ProviderError): string {
  const status: ExecStatus = {
    metadata: {},
    status: "Failure",
    reason: "InternalError",
    code: 500,
    message: error.message,
    details: { causes: [{ reason: CODE_CAUSE, message: error.code }] },
  };
  return JSON.stringify(status);
}

/** @returns the exit code. @throws ProviderError what the backend said instead of one */
export function exitOfStatus(text: string): number {
  let status: ExecStatus;
  try {
    status = JSON.parse(text) as ExecStatus;
  } catch (thrown) {
    throw new ProviderError("unavailable", "the backend's exit status is not JSON", { cause: thrown });
  }
  if (status.status === "Success") return 0;
  const causes = Array.isArray(status.details?.causes) ? status.details.causes : [];
  if (status.reason === "NonZeroExitCode") {
    const code = Number(causes.find((cause) => cause.reason === "ExitCode")?.message);
    if (Number.isInteger(code) && Math.abs(code) <= 0x7fffffff) return code;
    throw new ProviderError("unavailable", "the backend's exit status names no exit code");
  }
  const code = causes.find((cause) => cause.reason === CODE_CAUSE)?.message;
  throw new ProviderError(
    isCode(code) ? code : "unavailable",
    plainText(typeof status.message === "string" ? status.message : "the session failed", 1024),
  );
}

function isCode(code: string | undefined): code is ProviderErrorCode {
  return code !== undefined && Object.hasOwn(STATUS_OF_CODE, code);
}

export function errorReply(error: ProviderError, requestId: string): Schemas["ErrorReply"] {
  return {
    error: {
      code: error.code,
      message: error.message,
      retryable: error.retryable,
      ...(error.retryAfterMs === undefined ? {} : { retry_after_ms: Math.max(0, Math.round(error.retryAfterMs)) }),
      ...(error.field === undefined ? {} : { field: error.field }),
      request_id: requestId,
    },
  };
}

/** What comes between the time and the content. */
const TAGS = {
  stdout: { whole: Buffer.from(" stdout F "), part: Buffer.from(" stdout P ") },
  stderr: { whole: Buffer.from(" stderr F "), part: Buffer.from(" stderr P ") },
} as const;
const TAG_BYTES = TAGS.stdout.whole.length;
const NEWLINE = 10;

/** These two run for every line of every log that is read, so they make few strings. */
export function encodeLogLine({ at, stream, partial, content }: LogLine): Buffer {
  const record = Buffer.allocUnsafe(at.length + TAG_BYTES + content.length + 1);
  record.write(at, "latin1");
  record.set(TAGS[stream][partial ? "part" : "whole"], at.length);
  record.set(content, at.length + TAG_BYTES);
  record[record.length - 1] = NEWLINE;
  return record;
}

const TIME = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?Z$/;
const MAX_TIME_BYTES = 30;

/** `2016-10-06T00:17:09.669794202Z stdout F text`, without a newline. @returns undefined when it is not a log line */
export function decodeLogLine(record: Buffer): LogLine | undefined {
  const end = record.indexOf(32);
  const begin = end + TAG_BYTES;
  if (end < 0 || end > MAX_TIME_BYTES || record.length < begin) return undefined;
  const stream = hasTag(record, end, "stdout") ? "stdout" : hasTag(record, end, "stderr") ? "stderr" : undefined;
  if (stream === undefined) return undefined;
  const at = record.toString("latin1", 0, end);
  if (!TIME.test(at)) return undefined;
  return { at, stream, partial: record[begin - 2] === PART, content: record.subarray(begin) };
}

const WHOLE = 70;
const PART = 80;

function hasTag(record: Buffer, at: number, stream: LogLine["stream"]): boolean {
  const tag = TAGS[stream].whole;
  for (let index = 0; index < TAG_BYTES; index++) {
    const byte = record[at + index];
    if (byte !== tag[index] && !(byte === PART && tag[index] === WHOLE)) return false;
  }
  return true;
}
