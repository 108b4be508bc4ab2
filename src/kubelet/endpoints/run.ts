/** The kubelet's old `run` route: a command whose output is the reply's body, without a stream. */
import type { Readable } from "node:stream";
import type { UnreadAccount, UnreadBytes } from "../../util/unread.ts";
import { HttpError } from "../../http/http-error.ts";
import { findPod, requireContainer } from "../pod-lookup.ts";
import type { Handler } from "../router.ts";
import { ability } from "./ability.ts";
import type { StreamOptions } from "./exec.ts";
import { onAbort } from "../../util/abort.ts";

/** The whole output is held until the command ends: this old route tells failure by the status, which comes first. */
const MAX_OUTPUT_BYTES = 16 * 1024 * 1024;

/**
 * `POST /run/NAMESPACE/POD[/UID]/CONTAINER?cmd=...`: a command without input; the reply is its output, 500 when it
 * failed.
 */
export function run(options: StreamOptions): Handler {
  const { lookup, sessions, unread } = options;
  return {
    kind: "plain",
    async handle({ params, query, user, signal, notes }) {
      const found = findPod(lookup, params as { namespace: string; pod: string; uid?: string });
      notes.podUid = found.pod.metadata?.uid;
      const container = params["container"]!;
      requireContainer(found.pod, container);
      const command = (query.get("cmd") ?? "").split(" ");
      if (command[0] === "") throw new HttpError(400, 'query parameter "cmd" is required');
      const start = ability(options, "exec");
      using _session = sessions.open("exec", found.pod.metadata, user.username);
      const streams = { stdin: false, stdout: true, stderr: true, tty: false, signal };
      const process = await start(found.machineId, container, command, streams);
      notes.begun = true;
      // This promise may have no other user left; its rejection must not go unhandled.
      process.exit.catch(() => {});
      let held: CappedOutput | undefined;
      try {
        signal.throwIfAborted();
        using _ = onAbort(signal, () => process.close());
        const output = new CappedOutput(unread, params["namespace"]!, () => process.close());
        held = output;
        const copied = [output.collect(process.stdout), output.collect(process.stderr)];
        // All at a time: a command of too much output need not end by itself.
        const [{ exitCode }] = await Promise.all([process.exit, ...copied]);
        notes.exitCode = exitCode;
        const contentType = "text/plain; charset=utf-8";
        if (exitCode === 0) return { status: 200, contentType, body: output.text() };
        return {
          status: 500,
          contentType,
          body: `command terminated with non-zero exit code: exit code ${exitCode}\n${output.text()}`,
        };
      } finally {
        held?.leave();
        process.close();
      }
    },
  };
}

class CappedOutput {
  #chunks: Buffer[] = [];
  #size = 0;
  #isCut = false;
  readonly #account: UnreadAccount;

  constructor(budget: UnreadBytes, tenant: string, stop: () => void) {
    this.#account = budget.join({
      tenant,
      measure: () => this.#size,
      cut: () => {
        this.#isCut = true;
        this.#chunks = [];
        stop();
      },
    });
  }

  leave(): void {
    this.#account.leave();
  }

  async collect(source: Readable | null): Promise<void> {
    if (source === null) return;
    for await (const chunk of source) {
      this.#size += (chunk as Buffer).length;
      if (this.#size > MAX_OUTPUT_BYTES)
        throw new HttpError(500, `the command wrote more than ${MAX_OUTPUT_BYTES} bytes; use exec`);
      this.#chunks.push(chunk as Buffer);
      this.#account.add((chunk as Buffer).length);
    }
  }

  /** @throws HttpError 503 when others need the memory */
  text(): string {
    if (this.#isCut) throw new HttpError(503, "too much output of commands is held at the moment; use exec");
    return Buffer.concat(this.#chunks).toString("utf8");
  }
}
