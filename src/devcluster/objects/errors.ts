/**
 * Failures as kube-apiserver words them (`apimachinery/pkg/api/errors`): clients branch on `reason` and `code`, people
 * and some controllers read `message`, so all three are kept to the letter.
 */
import { VmletError } from "../../util/errors.ts";

/** One line of a 422: `field: type: detail`, as `field.Error` prints it. */
export interface FieldCause {
  reason:
    | "FieldValueRequired"
    | "FieldValueInvalid"
    | "FieldValueDuplicate"
    | "FieldValueForbidden"
    | "FieldValueNotSupported"
    | "FieldValueTooLong"
    | "NamespaceTerminating";
  field: string;
  message: string;
}

export interface StatusBody {
  kind: "Status";
  apiVersion: "v1";
  metadata: { continue?: string };
  status: "Failure" | "Success";
  message?: string;
  reason?: string;
  details?: {
    name?: string;
    group?: string;
    kind?: string;
    uid?: string;
    causes?: { reason: string; message: string; field?: string }[];
    retryAfterSeconds?: number;
  };
  code?: number;
}

/** What a request is about, as messages name it: `pods "web"`, `leases.coordination.k8s.io "n1"`. */
export interface Subject {
  group: string;
  resource: string;
  kind: string;
}

export class ApiStatusError extends VmletError {
  readonly code = "DEVCLUSTER_STATUS";
  readonly body: StatusBody & { code: number };

  constructor(code: number, reason: string | undefined, message: string, details?: StatusBody["details"]) {
    super(message);
    this.body = {
      kind: "Status",
      apiVersion: "v1",
      metadata: {},
      status: "Failure",
      message,
      ...(reason && { reason }),
      ...(details && { details }),
      code,
    };
  }
}

const qualified = (s: Pick<Subject, "group" | "resource">) =>
  s.group === "" ? s.resource : `${s.resource}.${s.group}`;
const details = (group: string, kind: string, name: string): StatusBody["details"] => ({
  ...(name && { name }),
  ...(group && { group }),
  kind,
});

export const notFound = (s: Subject, name: string) =>
  new ApiStatusError(404, "NotFound", `${qualified(s)} "${name}" not found`, details(s.group, s.resource, name));

/** An unknown path or kind: kube-apiserver answers this for any resource that it does not serve. */
export const resourceNotFound = () =>
  new ApiStatusError(404, "NotFound", "the server could not find the requested resource", {});

/** What every real cluster has and this one has not: kubectl shows the message, and who reads it made no mistake. */
export const notServed = (what: string, instead: string) =>
  new ApiStatusError(404, "NotFound", `the small cluster of vmlet dev ${what}; ${instead}`, {});

export const alreadyExists = (s: Subject, name: string) =>
  new ApiStatusError(
    409,
    "AlreadyExists",
    `${qualified(s)} "${name}" already exists`,
    details(s.group, s.resource, name),
  );

export const conflict = (s: Pick<Subject, "group" | "resource">, name: string, why: string) =>
  new ApiStatusError(
    409,
    "Conflict",
    `Operation cannot be fulfilled on ${qualified(s)} "${name}": ${why}`,
    details(s.group, s.resource, name),
  );

export const modifiedConflict = (s: Subject, name: string) =>
  conflict(s, name, "the object has been modified; please apply your changes to the latest version and try again");

export const forbidden = (s: Subject, name: string, why: string, causes?: FieldCause[]) =>
  new ApiStatusError(403, "Forbidden", `${qualified(s)}${name ? ` "${name}"` : ""} is forbidden: ${why}`, {
    ...details(s.group, s.resource, name),
    ...(causes && { causes }),
  });

/** 422. The message joins the causes as Go's error aggregate does: one alone, several in brackets. */
export function invalid(
  s: Pick<Subject, "group" | "kind">,
  name: string,
  causes: readonly FieldCause[],
): ApiStatusError {
  const lines = [...new Set(causes.map((cause) => `${cause.field}: ${cause.message}`))];
  const kind = s.group === "" ? s.kind : `${s.kind}.${s.group}`;
  const text = lines.length === 1 ? lines[0] : `[${lines.join(", ")}]`;
  return new ApiStatusError(422, "Invalid", `${kind} "${name}" is invalid: ${text}`, {
    ...details(s.group, s.kind, name),
    causes: causes.map(({ reason, message, field }) => ({ reason, message, field })),
  });
}

export const badRequest = (message: string) => new ApiStatusError(400, "BadRequest", message);
export const unauthorized = () => new ApiStatusError(401, "Unauthorized", "Unauthorized");
export const methodNotAllowed = () =>
  new ApiStatusError(405, "MethodNotAllowed", "the server does not allow this method on the requested resource", {});
export const notAcceptable = (accepted: string[]) =>
  new ApiStatusError(406, "NotAcceptable", `only the following media types are accepted: ${accepted.join(", ")}`);
export const expired = (message: string) => new ApiStatusError(410, "Expired", message);
export const entityTooLarge = (limit: number) =>
  new ApiStatusError(413, "RequestEntityTooLarge", `Request entity too large: limit is ${limit}`);
export const unsupportedMediaType = (accepted: string[]) =>
  new ApiStatusError(
    415,
    "UnsupportedMediaType",
    `the body of the request was in an unknown format - accepted media types include: ${accepted.join(", ")}`,
  );
export const internalError = (message: string) =>
  new ApiStatusError(500, "InternalError", `Internal error occurred: ${message}`, {
    causes: [{ reason: "", message }],
  });

/** 504 for a resourceVersion that this server has not reached yet; clients wait and ask again. */
export const tooLargeResourceVersion = (asked: number, current: number) =>
  new ApiStatusError(504, "Timeout", `Timeout: Too large resource version: ${asked}, current: ${current}`, {
    causes: [{ reason: "ResourceVersionTooLarge", message: "Too large resource version" }],
    retryAfterSeconds: 1,
  });

/** 429 for an eviction that would take too many. @param why what the budget says @param seconds when to ask again */
export const disruptionBudgetExceeded = (why: string, seconds = 0) =>
  new ApiStatusError(429, "TooManyRequests", "Cannot evict pod as it would violate the pod's disruption budget.", {
    causes: [{ reason: "DisruptionBudget", message: why }],
    ...(seconds > 0 && { retryAfterSeconds: seconds }),
  });

/** Constructors of field causes, in the words of `field.Error`. Values are printed as Go's JSON encoder would. */
const shown = (value: unknown) => (typeof value === "string" ? JSON.stringify(value) : JSON.stringify(value ?? null));
export const required = (field: string, detail = ""): FieldCause => ({
  reason: "FieldValueRequired",
  field,
  message: `Required value${detail && `: ${detail}`}`,
});
export const invalidValue = (field: string, value: unknown, detail: string): FieldCause => ({
  reason: "FieldValueInvalid",
  field,
  message: `Invalid value: ${shown(value)}: ${detail}`,
});
export const duplicate = (field: string, value: unknown): FieldCause => ({
  reason: "FieldValueDuplicate",
  field,
  message: `Duplicate value: ${shown(value)}`,
});
export const forbiddenField = (field: string, detail: string): FieldCause => ({
  reason: "FieldValueForbidden",
  field,
  message: `Forbidden: ${detail}`,
});
export const notSupported = (field: string, value: unknown, supported: readonly string[]): FieldCause => ({
  reason: "FieldValueNotSupported",
  field,
  message: `Unsupported value: ${shown(value)}: supported values: ${supported.map((s) => JSON.stringify(s)).join(", ")}`,
});
