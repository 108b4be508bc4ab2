/**
 * Variables of a container whose values are in files of its machine's volumes, as a kubelet has them for `fileKeyRef`
 * (pkg/kubelet/util/env: ParseEnv; kubelet_pods.go: makeEnvironmentVariables). The files are the tenant's: who reads
 * them for this bounds what is read, and follows no link out of the volume.
 */
import { failure, type Result, success } from "../util/result.ts";
import type { ContainerSpec } from "./machine.ts";

/** All of a container's files together: they are parsed at each start. */
export const ENV_FILE_BYTES = 512 * 1024;
/** A container's files: each is looked for at each start. */
export const MAX_ENV_FILES = 32;
/** Of one line with its end, as Go's bufio.Scanner takes it. */
const LINE_BYTES = 64 * 1024;
/** One environment variable's value, or one word of a command (Linux: MAX_ARG_STRLEN). */
export const WORD_BYTES = 128 * 1024;
/** The environment of one container with its command and arguments (Linux: a quarter of the usual stack). */
export const PROCESS_BYTES = 2 * 1024 * 1024;

export interface EnvFileRef {
  volume: string;
  path: string;
}

/** What a file has, up to its first fault. */
interface EnvFile {
  values: ReadonlyMap<string, string>;
  fault?: string | undefined;
}

/** The files that a container's variables are in, each once. */
export function envFilesOf({ env = [] }: Pick<ContainerSpec, "env">): EnvFileRef[] {
  const files = new Map<string, EnvFileRef>();
  for (const { from_file: from } of env)
    if (from !== undefined) files.set(fileKey(from), { volume: from.volume, path: from.path });
  return [...files.values()];
}

/** A volume's name has no slash. */
const fileKey = ({ volume, path }: EnvFileRef) => `${volume}/${path}`;

/**
 * The container with the values of its files in their places.
 *
 * @param readings of all that `envFilesOf` names; `ok: false` for a file that cannot be read
 * @returns else why it has to wait: a kubelet's words, and where they are too few, more. Of what is in the files,
 *   nothing is said: it may be secret
 */
export function withEnvFiles(
  container: ContainerSpec,
  readings: readonly { file: EnvFileRef; text: Result<string> }[],
): Result<ContainerSpec> {
  const { env = [], env_tokens: tokens, ...rest } = container;
  if (!env.some(({ from_file }) => from_file !== undefined)) return success(container);
  const files = new Map<string, EnvFile>();
  for (const { file, text } of readings)
    files.set(fileKey(file), text.ok ? parseEnvFile(text.value) : { values: new Map(), fault: text.message });

  const variables = new Map<string, string>();
  const filling = new Filling(tokens, variables);
  for (const { name, value, from_file: from } of env) {
    const found = from === undefined ? filling.fill(value, name) : valueOf(from, files);
    if (found === undefined) continue;
    if (!found.ok) return found;
    const problem = problemOf(name, found.value);
    if (problem !== undefined) return failure(problem);
    variables.set(name, found.value);
    if (!filling.take(name, found.value)) return failure(TOO_LONG);
  }
  const filled: Pick<ContainerSpec, "command" | "args"> = {};
  for (const part of ["command", "args"] as const) {
    const words: string[] = [];
    for (const word of container[part] ?? []) {
      const found = filling.fill(word, part);
      if (!found.ok) return found;
      if (!filling.take(found.value)) return failure(TOO_LONG);
      words.push(found.value);
    }
    if (container[part] !== undefined) filled[part] = words;
  }
  return success({ ...rest, ...filled, env: [...variables].map(([name, value]) => ({ name, value })) });
}

const TOO_LONG = `the environment and arguments would take more than ${PROCESS_BYTES} bytes: argument list too long`;

/** Of a text that the tenant has made as long as they like. */
const brief = (text: string) => (text.length <= 128 ? text : `${text.slice(0, 125)}...`);

function problemOf(name: string, value: string): string | undefined {
  if (value.includes("\0")) return `environment variable "${brief(name)}" holds a NUL byte`;
  const bytes = Buffer.byteLength(value);
  return bytes <= WORD_BYTES
    ? undefined
    : `environment variable "${brief(name)}" has ${bytes} bytes, a process can be given at most ${WORD_BYTES}: argument list too long`;
}

type Source = NonNullable<NonNullable<ContainerSpec["env"]>[number]["from_file"]>;

/** Undefined when it is optional and not there. A file that is not there is a fault even then, as in a kubelet. */
function valueOf(from: Source, files: ReadonlyMap<string, EnvFile>): Result<string> | undefined {
  const { volume, path, key, optional } = from;
  const where = `file "${brief(path)}" of volume "${volume}"`;
  const { values, fault } = files.get(fileKey(from)) ?? { values: new Map<string, string>(), fault: "it was not read" };
  const value = values.get(key);
  if (value === undefined && fault !== undefined) return failure(`couldn't parse env file: ${where}: ${fault}`);
  if (value !== undefined && value !== "") return success(value);
  return optional === true ? undefined : failure(`environment variable key "${brief(key)}" not found in ${where}`);
}

/** Puts values into texts, and bounds what comes of it. Takes time in proportion to what goes in and comes out. */
class Filling {
  readonly #tokens: ContainerSpec["env_tokens"];
  readonly #variables: ReadonlyMap<string, string>;
  #left = PROCESS_BYTES;

  constructor(tokens: ContainerSpec["env_tokens"], variables: ReadonlyMap<string, string>) {
    this.#tokens = tokens;
    this.#variables = variables;
  }

  /** False when the process would be given more than it can. */
  take(...texts: readonly string[]): boolean {
    for (const text of texts) this.#left -= Buffer.byteLength(text) + 1;
    return this.#left >= 0;
  }

  /** @param what the text is, for people */
  fill(text: string, what: string): Result<string> {
    if (this.#tokens === undefined) return success(text);
    const { open, close } = this.#tokens;
    let filled = "";
    let at = 0;
    for (;;) {
      const start = text.indexOf(open, at);
      const end = start === -1 ? -1 : text.indexOf(close, start + open.length);
      if (end === -1) return success(filled + text.slice(at));
      const name = text.slice(start + open.length, end);
      filled += text.slice(at, start) + (this.#variables.get(name) ?? `$(${name})`);
      if (filled.length > WORD_BYTES)
        return failure(
          `with the values of files, "${brief(what)}" has more than ${WORD_BYTES} bytes, a process can be given no more at once: argument list too long`,
        );
      at = end + close.length;
    }
  }
}

/**
 * Reads `KEY='value'`, the strict part of a shell's syntax that a kubelet takes.
 *
 * @internal
 */
export function parseEnvFile(text: string): EnvFile {
  const values = new Map<string, string>();
  const lines = new Lines(text);
  for (let line = lines.next(); line !== undefined; line = lines.next()) {
    const fault = readAssignment(trimmed(line), lines, values);
    if (fault !== undefined) return { values, fault };
  }
  return { values, fault: lines.fault };
}

/** @returns what is wrong with it, in a kubelet's words */
function readAssignment(line: string, lines: Lines, values: Map<string, string>): string | undefined {
  const format = (what: string) => `invalid environment variable format at line ${lines.count}: ${what}`;
  const set = (key: string, value: string): void => {
    if (!values.has(key)) values.set(key, value);
  };
  if (line === "" || line.startsWith("#")) return undefined;
  const equals = line.indexOf("=");
  if (equals === -1) return format("missing '='");
  const key = line.slice(0, equals);
  if (key === "") return format("empty variable name");
  if (key.endsWith(" ") || key.endsWith("\t")) return format("whitespace before '=' is not allowed");
  const given = line.slice(equals + 1);
  if (given.startsWith(" ") || given.startsWith("\t")) {
    // As in a shell, where what follows would be a command.
    set(key, "");
    return undefined;
  }
  if (!given.startsWith("'")) return format("value must be enclosed in single quotes");
  const start = lines.count;
  const parts: string[] = [];
  for (let rest: string | undefined = given.slice(1); rest !== undefined; rest = lines.next()) {
    const quote = rest.indexOf("'");
    if (quote === -1) {
      parts.push(rest);
      continue;
    }
    const after = trimmed(rest.slice(quote + 1));
    if (after !== "" && !after.startsWith("#")) return format("unexpected content after closing quote");
    set(key, [...parts, rest.slice(0, quote)].join("\n"));
    return undefined;
  }
  return `invalid environment variable format starting at line ${start}: unclosed single quote`;
}

/** Without the blanks and tabs that it begins with. */
function trimmed(line: string): string {
  let from = 0;
  while (line[from] === " " || line[from] === "\t") from++;
  return line.slice(from);
}

/** As bufio.ScanLines has them: a carriage return before the line's end is no part of it. */
class Lines {
  readonly #text: string;
  #at = 0;
  /** Of those that were given out. */
  count = 0;
  fault: string | undefined;

  constructor(text: string) {
    this.#text = text;
  }

  next(): string | undefined {
    if (this.fault !== undefined || this.#at >= this.#text.length) return undefined;
    const end = this.#text.indexOf("\n", this.#at);
    const line = this.#text.slice(this.#at, end === -1 ? undefined : end);
    // A character has three bytes at most, a pair of them four.
    if (line.length * 3 >= LINE_BYTES && Buffer.byteLength(line) >= LINE_BYTES) {
      this.fault = `line ${this.count + 1} has ${LINE_BYTES} bytes or more`;
      return undefined;
    }
    this.#at = end === -1 ? this.#text.length : end + 1;
    this.count++;
    return line.endsWith("\r") ? line.slice(0, -1) : line;
  }
}
