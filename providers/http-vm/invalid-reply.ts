import { VmletError } from "../../src/provider/kit/index.ts";

/**
 * Why a reply, or a part of one, was refused or changed; counted by `vmlet_backend_invalid_responses_total{reason}`.
 */
export type InvalidReason =
  | "json"
  | "schema"
  | "keys"
  | "duplicate_key"
  | "depth"
  | "size"
  | "content_type"
  | "request_id"
  | "machine_id"
  | "duplicate_id"
  | "revision"
  | "cursor_loop"
  | "labels"
  | "loopback_ip"
  | "extra_address"
  | "future_time"
  | "past_time"
  | "redirect"
  | "log_line";

export class InvalidReplyError extends VmletError {
  readonly code = "INVALID_REPLY";
  readonly reason: InvalidReason;
  constructor(reason: InvalidReason, message: string, options: { cause?: unknown } = {}) {
    super(message, options);
    this.reason = reason;
  }
}
