import { VmletError } from "../util/errors.ts";

/** A reply other than success: its status, and the words and headers that the client gets. */
export class HttpError extends VmletError {
  readonly code = "HTTP";
  readonly status: number;
  readonly headers: readonly (readonly [string, string])[];

  constructor(status: number, message: string, headers: readonly (readonly [string, string])[] = []) {
    super(message);
    this.status = status;
    this.headers = headers;
  }
}
