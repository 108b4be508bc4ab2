/**
 * What each pod of the node was given that is secret: the values of its Secrets, its tokens and its registry
 * credentials. Learned when it is rendered, and kept in memory for as long as its backend may have something to say of
 * it.
 */
import { uidOf } from "../../kube/pod.ts";
import type { Pod } from "../../kube/wire.ts";
import { isProviderError } from "../../provider/errors.ts";
import type { ContainerTermination, Machine, RegistryAuth } from "../../provider/machine.ts";
import type { Provider } from "../../provider/provider.ts";
import type { References } from "../types.ts";
import { registryAuth } from "./pull-secrets.ts";
import { Redactor } from "./redaction.ts";

interface Known {
  redactor: Redactor;
  /** The version of what was learned last. */
  sources: string | undefined;
  /** Machines as they were said to be, with what is left of them. */
  cleaned: WeakMap<Machine, Machine>;
}

/** Only this many characters of all texts of a machine are searched; the rest is not passed on. */
const MAX_TEXT = 64 * 1024;
/** Of a larger value only this much is looked at, in base64. */
const MAX_ENCODED = 96 * 1024;

export class PodSecrets {
  readonly #pods = new Map<string, Known>();

  knows(podUid: string): boolean {
    return this.#pods.has(podUid);
  }

  /** @param sources the version of the references: the same are learned once */
  learn(pod: Pod, references: References, sources: string): void {
    const known = this.#of(pod);
    if (known.sources === sources) return;
    known.sources = sources;
    this.#add(known, pod, [...secretValues(references), ...passwords(registryAuth(pod, references, []))]);
  }

  /** Credentials that came from elsewhere than the pod's Secrets. */
  learnCredentials(pod: Pod, auth: readonly RegistryAuth[]): void {
    if (auth.length > 0) this.#add(this.#of(pod), pod, passwords(auth));
  }

  /** Tokens that were issued for this one rendering. */
  learnTokens(pod: Pod, tokens: readonly string[]): void {
    this.#add(this.#of(pod), pod, tokens);
  }

  /** `text` without what the pod keeps secret. */
  redact(podUid: string, text: string): string {
    return this.#pods.get(podUid)?.redactor.redact(text) ?? text;
  }

  /** The machine with its texts redacted; the same object where there is nothing to redact. */
  clean(podUid: string, machine: Machine): Machine {
    const known = this.#pods.get(podUid);
    if (known === undefined || !saysSomething(machine)) return machine;
    let cleaned = known.cleaned.get(machine);
    if (cleaned === undefined) known.cleaned.set(machine, (cleaned = cleanMachine(machine, known.redactor)));
    return cleaned;
  }

  release(podUid: string): void {
    this.#pods.delete(podUid);
  }

  #of(pod: Pod): Known {
    const uid = uidOf(pod);
    let known = this.#pods.get(uid);
    if (known === undefined) {
      known = { redactor: new Redactor(), sources: undefined, cleaned: new WeakMap() };
      this.#pods.set(uid, known);
    }
    return known;
  }

  #add(known: Known, pod: Pod, values: readonly string[]): void {
    if (values.length === 0) return;
    const { name, namespace } = pod.metadata ?? {};
    known.redactor.add(values, JSON.stringify([namespace, name, pod.spec]));
    known.cleaned = new WeakMap();
  }
}

/** True when a machine comes with words of its backend's own. */
export function saysSomething(machine: Machine): boolean {
  return (
    machine.message !== undefined ||
    (machine.notices ?? []).length > 0 ||
    machine.containers.some(
      ({ message, terminated, last }) =>
        message !== undefined || terminated?.message !== undefined || last?.message !== undefined,
    )
  );
}

/**
 * The provider, whose errors about a machine quote nothing that its pod keeps secret: they end up in events, statuses
 * and the log.
 *
 * @param redact by the machine's id
 */
export function withoutSecrets<Some extends Partial<Provider>>(
  provider: Some,
  redact: (machineId: string, text: string) => string,
): Some {
  const calls: ReadonlySet<string> = new Set(["createPod", "getPod", "updatePod", "stopPod", "deletePod"]);
  return new Proxy(provider, {
    get(target, property) {
      const member: unknown = Reflect.get(target, property, target);
      if (typeof member !== "function") return member;
      const call = member as (...args: unknown[]) => unknown;
      if (!calls.has(String(property))) return call.bind(target);
      return async (...args: unknown[]) => {
        try {
          return await call.apply(target, args);
        } catch (thrown) {
          if (isProviderError(thrown)) {
            thrown.message = redact(String(args[0]), thrown.message);
            // It begins with the message.
            if (thrown.stack !== undefined) thrown.stack = redact(String(args[0]), thrown.stack);
          }
          throw thrown;
        }
      };
    },
  });
}

function* secretValues({ secrets, tokens, certificates }: References): Iterable<string> {
  for (const lookup of secrets.values()) {
    if (lookup.kind !== "found") continue;
    for (const value of Object.values(lookup.object.data ?? {}))
      yield Buffer.from(value.slice(0, MAX_ENCODED), "base64").toString("utf8");
  }
  for (const lookup of tokens.values()) if (lookup.kind === "found") yield lookup.object;
  for (const lookup of certificates?.values() ?? []) if (lookup.kind === "found") yield lookup.object.privateKey;
}

function passwords(auth: readonly RegistryAuth[]): string[] {
  return auth.flatMap(({ password, identity_token: token }) => [password ?? "", token ?? ""]);
}

function cleanMachine(machine: Machine, redactor: Redactor): Machine {
  let left = MAX_TEXT;
  const message = <T extends { message?: string }>(said: T): T => {
    if (said.message === undefined) return said;
    const text = said.message.slice(0, left);
    left -= text.length;
    return { ...said, message: redactor.redact(text) + (text.length < said.message.length ? "..." : "") };
  };
  return {
    ...message(machine),
    containers: machine.containers.map((container) => {
      const { terminated, last } = container;
      const end = (key: "terminated" | "last", said: ContainerTermination | undefined) =>
        said === undefined ? {} : { [key]: message(said) };
      return { ...message(container), ...end("terminated", terminated), ...end("last", last) };
    }),
    ...(machine.notices && { notices: machine.notices.map(message) }),
  };
}
