/**
 * The configuration file of an agent that runs: looked at every so often, by its path, so that the swapped links of a
 * mounted ConfigMap are followed. One that cannot be used changes nothing.
 */
import { readFile } from "node:fs/promises";
import { isDeepStrictEqual } from "node:util";
import type { Logger } from "../telemetry/logger.ts";
import { pause } from "../util/abort.ts";
import type { Clock } from "../util/clock.ts";
import { toError } from "../util/errors.ts";
import { FILE_POLL_MS } from "../util/reloadable.ts";
import { parseLoaded, type ConfigOverrides } from "../config/load.ts";
import type { AgentConfig } from "../config/schema.ts";

/** A file that is being written may be valid, and lack half its nodes: it has to be the same so much later. */
const SETTLE_MS = 1_000;

interface ConfigFileOptions {
  path: string;
  /** What flags set goes over every later file too. */
  flags: ConfigOverrides;
  /** What the process was started with. */
  config: AgentConfig;
  clock: Clock;
  logger: Logger;
  /** For tests. Default: the file system. */
  read?: ((path: string) => Promise<string>) | undefined;
}

export class ConfigFile {
  readonly #options: ConfigFileOptions;
  #config: AgentConfig;
  /** What was judged last. */
  #text: string | undefined;
  #seen: string | undefined;
  #readFault: string | undefined;
  #contentFault: string | undefined;
  #readAt: number;

  constructor(options: ConfigFileOptions) {
    this.#options = options;
    this.#config = options.config;
    this.#readAt = options.clock.now();
  }

  /** Why the file as it is cannot be used; undefined while it can. */
  get fault(): string | undefined {
    return this.#readFault ?? this.#contentFault;
  }

  /** When a configuration was taken last, in milliseconds since the epoch. */
  get readAt(): number {
    return this.#readAt;
  }

  /** Calls `onChange` with each new configuration and `onLook` after each look, until the signal aborts. */
  async run(signal: AbortSignal, onChange: (config: AgentConfig) => void, onLook: () => void): Promise<void> {
    const { clock } = this.#options;
    while (!signal.aborted) {
      const delayMs = await this.#look(onChange);
      onLook();
      await pause(clock, delayMs, signal);
    }
  }

  async #look(onChange: (config: AgentConfig) => void): Promise<number> {
    const { path, logger, read = (file) => readFile(file, "utf8") } = this.#options;
    let text: string;
    try {
      text = await read(path);
    } catch (thrown) {
      const fault = `cannot read the configuration file ${path}: ${toError(thrown).message}`;
      if (fault !== this.#readFault) logger.error({ err: thrown, path }, KEPT);
      this.#readFault = fault;
      return FILE_POLL_MS;
    }
    this.#readFault = undefined;
    if (text === this.#text) return FILE_POLL_MS;
    if (text !== this.#seen) {
      this.#seen = text;
      return SETTLE_MS;
    }
    this.#text = text;
    this.#judge(text, onChange);
    return FILE_POLL_MS;
  }

  #judge(text: string, onChange: (config: AgentConfig) => void): void {
    const { path, flags, clock, logger } = this.#options;
    try {
      const config = parseLoaded(text, path, flags);
      this.#contentFault = undefined;
      this.#readAt = clock.now();
      if (isDeepStrictEqual(config, this.#config)) return;
      this.#config = config;
      onChange(config);
    } catch (thrown) {
      this.#contentFault = toError(thrown).message;
      logger.error({ err: thrown, path }, KEPT);
    }
  }
}

const KEPT = "The configuration cannot be used: the one before stays; `vmlet check` says what is wrong with it";
