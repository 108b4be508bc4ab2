/** What a request may hold. */
import { constants } from "node:os";

const STATUS = {
  invalid: 400,
  unauthorized: 401,
  not_found: 404,
  conflict: 409,
  gone: 410,
  unsupported: 501,
  unavailable: 503,
};

export class ApiError extends Error {
  readonly code: keyof typeof STATUS;
  readonly field: string | undefined;

  constructor(code: keyof typeof STATUS, message: string, field?: string) {
    super(message);
    this.code = code;
    this.field = field;
  }

  get status(): number {
    return STATUS[this.code];
  }
}

export interface Spec {
  labels: { [key: string]: string };
  containers: {
    name: string;
    image: string;
    command: string[];
    args?: string[];
    working_dir?: string;
    env?: { name: string; value: string }[];
    stop?: { signal?: string };
  }[];
  restart_policy: "always" | "on_failure" | "never";
  termination_grace_s?: number;
  backoff?: { initial_ms: number; max_ms: number };
}

type Test = (value: unknown) => boolean;
/** An object has these fields (`!`: required), an array is of its one entry, a set has the words that are allowed. */
type Shape = Test | ReadonlySet<unknown> | readonly [Shape] | { readonly [field: string]: Shape };

const isText: Test = (value) => typeof value === "string" && !value.includes("\0");
const isFlag: Test = (value) => typeof value === "boolean";
const isInteger: Test = (value) => Number.isSafeInteger(value);
const isCount: Test = (value) => isInteger(value) && Number(value) >= 0;
const isSeconds: Test = (value) => typeof value === "number" && value >= 0 && value < 2 ** 31;
const isName: Test = (value) => isText(value) && /^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$/.test(String(value));
const isVariable: Test = (value) => isText(value) && /^[^=]+$/.test(String(value));
const isSignal: Test = (value) => isText(value) && signalNumber(String(value)) > 0;
const isLabels: Test = (value) =>
  isObject(value) &&
  Object.keys(value).length <= 256 &&
  Object.values(value).every((each) => isText(each) && String(each).length <= 4096);

const isObject = (value: unknown): value is { [field: string]: unknown } =>
  typeof value === "object" && value !== null && !Array.isArray(value);

const AMOUNTS: Shape = {
  cpu_millis: isCount,
  memory_bytes: isCount,
  ephemeral_bytes: isCount,
  extended: [{ "name!": isText, "count!": isCount }],
};
const RESOURCES: Shape = { requests: AMOUNTS, limits: AMOUNTS };
const CONTAINER: Shape = {
  "name!": isName,
  "image!": isText,
  pull_policy: new Set(["always", "if_not_present", "never"]),
  command: [isText],
  args: [isText],
  working_dir: isText,
  env: [{ "name!": isVariable, "value!": isText }],
  resources: RESOURCES,
  ports: [{ name: isText, "port!": isCount, "protocol!": new Set(["tcp", "udp", "sctp"]) }],
  stop: { signal: isSignal },
  termination_message: { "path!": isText, "policy!": new Set(["file", "fallback_to_logs"]) },
};
const SPEC: Shape = {
  "labels!": isLabels,
  "containers!": [CONTAINER],
  "restart_policy!": new Set(["always", "on_failure", "never"]),
  termination_grace_s: isCount,
  resources: RESOURCES,
  backoff: { "initial_ms!": isCount, "max_ms!": isCount },
  priority: isInteger,
  // The host's own do for a process: what the API lets a backend without the capability leave aside.
  hostname: isText,
  domain: isText,
  hostname_is_fqdn: isFlag,
  dns: { "nameservers!": [isText], "searches!": [isText], "options!": [isText] },
};
const STOP: Shape = { "grace_seconds!": isSeconds };

/** Fields of the API that mean something this backend cannot do. What is asked for and cannot be kept is refused by its name. */
const NEEDS_MORE = new Set(
  (
    "init_containers ephemeral_containers volumes mounts probes hooks security tty stdin stdin_once restart_rules host_port " +
    "host_ip hosts registry_auth registry_auth_version instance_type runtime_handler address_tokens target cdi_devices env_tokens from_file"
  ).split(" "),
);

/** Reads 15, TERM, sigterm; 0 for what this backend cannot send. */
export function signalNumber(text: string): number {
  if (/^\d{1,2}$/.test(text)) return Number(text) < 65 ? Number(text) : 0;
  const name = `SIG${text.toUpperCase().replace(/^SIG/, "")}`;
  return name in constants.signals ? constants.signals[name as NodeJS.Signals] : 0;
}

/** Refuses what is not of that shape. A field that is ignored would run something else than what was asked for. */
function check(value: unknown, shape: Shape, field = ""): void {
  if (typeof shape === "function" || shape instanceof Set) {
    const isValid = typeof shape === "function" ? shape(value) : shape.has(value);
    if (!isValid) throw new ApiError("invalid", `${field} is not valid`, field);
  } else if (Array.isArray(shape)) {
    if (!Array.isArray(value)) throw new ApiError("invalid", `${field} must be an array`, field);
    for (const [index, part] of value.entries()) check(part, (shape as readonly [Shape])[0], join(field, `${index}`));
  } else {
    checkObject(value, shape as { [field: string]: Shape }, field);
  }
}

function checkObject(value: unknown, shape: { readonly [field: string]: Shape }, field: string): void {
  if (!isObject(value)) throw new ApiError("invalid", `${field || "the body"} must be an object`, field);
  for (const [name, part] of Object.entries(value)) {
    const path = join(field, name);
    const known = name.endsWith("!") ? undefined : (shape[name] ?? shape[`${name}!`]);
    if (known !== undefined) check(part, known, path);
    else if (NEEDS_MORE.has(name) || (name === "restart_policy" && "image!" in shape)) refuseUnlessEmpty(part, path);
    else if (!name.startsWith("x-")) throw new ApiError("invalid", `${path} is not known`, path);
  }
  const missing = Object.keys(shape).find((name) => name.endsWith("!") && value[name.slice(0, -1)] === undefined);
  if (missing === undefined) return;
  const path = join(field, missing.slice(0, -1));
  throw new ApiError("invalid", `${path} is missing`, path);
}

function refuseUnlessEmpty(value: unknown, field: string): void {
  if (value === null || value === false || (typeof value === "object" && Object.keys(value).length === 0)) return;
  const path = Array.isArray(value) ? `${field}.0` : field;
  throw new ApiError("unsupported", `this backend cannot do what ${path} asks for`, path);
}

const join = (field: string, name: string): string => (field === "" ? name : `${field}.${name}`);

function parse(body: Buffer): unknown {
  try {
    return JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(body));
  } catch (thrown) {
    throw new ApiError("invalid", `the body is not JSON: ${String(thrown)}`);
  }
}

export function parseSpec(body: Buffer): Spec {
  const value = parse(body);
  check(value, SPEC);
  const { containers } = value as Spec;
  if (containers.length === 0) throw new ApiError("invalid", "a machine has a container", "containers");
  if (containers.length > 1) throw new ApiError("unsupported", "a machine has one container here", "containers.1");
  const words = (containers[0] as Partial<Spec["containers"][0]>).command ?? [];
  if (words.length === 0)
    throw new ApiError(
      "unsupported",
      "this backend runs commands and no images: name a command",
      "containers.0.command",
    );
  return value as Spec;
}

export function parseStop(body: Buffer): { grace_seconds: number } {
  const value = parse(body);
  check(value, STOP);
  return value as { grace_seconds: number };
}
