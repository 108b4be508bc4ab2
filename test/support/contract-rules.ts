/**
 * The rules that openapi.yaml states in words (must, never, at once, at most, safe to repeat...), and by what each is held:
 * the kit's checks, or the reason why none of them can look at it. `npm run docs` writes the table of docs/machine-api-rules.md.
 */
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { parse } from "yaml";
import { CHECKS } from "../../src/provider/kit/index.ts";

export interface Rule {
  /** The part of the document. */
  where: string;
  sentence: string;
}

/** A rule begins with `begins`, in the part that `where` names if several do. */
interface Holder {
  begins: string;
  where?: string;
  /** Beginnings of the names of checks. */
  checks?: readonly string[];
  /** Why no check of a kit can look at it. */
  why?: string;
}

const DOCUMENT = join(import.meta.dirname, "../../src/provider/contract/openapi.yaml");
const IS_RULE = /\b(?:must|never|refused|at most|at least|at once|safe|idempotent|exactly once)\b/i;
const CLIENTS = "It is the client's; tests of the agent hold it";

const HOLDERS: readonly Holder[] = [
  { begins: "Redirects are never followed", why: CLIENTS },
  { begins: "**Tombstones.**", checks: ["delete/absent-leaves-a-tombstone"] },
  { begins: "It stays at least ten minutes", checks: ["http/tombstones-stay", "delete/the-tombstone-stays"] },
  { begins: "**Unknown fields.**", checks: ["http/unknown-", "http/x-fields"] },
  { begins: "They change nothing but what is traced", checks: ["http/trace-headers-change-nothing"] },
  { begins: "A machine's specification names the volumes", checks: ["disks/"] },
  { begins: "**Sizes.**", why: "A kit that fills a backend with so much would harm what runs on it" },
  { begins: "Secrets that a `PUT` carried", checks: ["machine/shows-no-secrets"] },
  { begins: "Clients ask it at start", why: CLIENTS },
  {
    begins: "A machine of another one that needs them",
    why: "Which namespaces these are is the host owner's choice; tests of the backend hold it",
  },
  { begins: "Items are whole machines", checks: ["list/items-are-whole-machines"] },
  { begins: "Pages are in the order of the ids", checks: ["http/pages-", "list/is-whole-under-churn"] },
  { begins: "One that is not understood", where: "machines", checks: ["http/a-strange-cursor-is-refused"] },
  { begins: "One that is not understood", where: "volumes", why: "The cursor is the same as that of machines" },
  { begins: "Idempotent: the same id", where: "machines", checks: ["create/replays-", "create/an-aborted-call"] },
  { begins: "The reply comes at once", where: "machines", checks: ["create/returns-the-machine"] },
  { begins: "The reply comes at once", where: "images", checks: ["images/what-cannot-be-had-says-why"] },
  { begins: "Repeating it is safe.", where: "machines/{id} patch", checks: ["files/patch-", "registry-auth/patch-"] },
  { begins: "Idempotent, and 204", where: "machines", checks: ["delete/absent-succeeds", "delete/is-idempotent"] },
  { begins: "It returns at once", checks: ["delete/returns-at-once", "delete/while-it-lasts"] },
  { begins: "Returns at once;", checks: ["stop/returns-at-once", "stop/sends-the-signal", "stop/kills-after"] },
  { begins: "Never earlier is it `stopped`", checks: ["stop/nothing-runs-any-more", "stop/ends-every-container"] },
  { begins: "Repeating it is safe; a shorter", checks: ["stop/is-idempotent", "stop/a-shorter", "stop/a-longer"] },
  {
    begins: "A request that does not offer the subprotocol",
    checks: ["http/exec-without-the-subprotocol", "http/attach-without-the-subprotocol"],
  },
  { begins: "A container of which no instance has started", checks: ["logs/of-what-waits-", "logs/begin-with-"] },
  {
    begins: "`PATH` and `HOME` must be there",
    checks: [
      "containers/environment-has-PATH-",
      "containers/environment-may-have-its-own-PATH-",
      "exec/has-PATH-and-HOME",
    ],
  },
  { begins: "A value in a file of one of the machine's `empty_dir`", checks: ["env-files/"] },
  { begins: "What cannot start is refused", checks: ["exec/needs-a-running", "exec/an-absent", "exec/an-unknown"] },
  { begins: "Neither side buffers", why: "What a backend keeps in memory cannot be seen from outside" },
  { begins: "A port where nothing listens", checks: ["ports/a-closed-port-is-refused"] },
  { begins: "Idempotent: the same id", where: "volumes", checks: ["disks/replays-make-one-volume"] },
  { begins: "It has at least this size", checks: ["disks/grow-and-never-shrink", "disks/what-is-on-them"] },
  { begins: "It never shrinks", checks: ["disks/grow-and-never-shrink"] },
  { begins: "Idempotent, and 204", where: "volumes", checks: ["disks/deletion-of-what-never-was"] },
  { begins: "Repeating it is safe; the same name", checks: ["disks/one-reservation-at-a-time"] },
  { begins: "One that is `exclusive` must never", checks: ["disks/exclusive-reservations-are-alone"] },
  { begins: "Idempotent, also for a reservation", checks: ["disks/reservations-", "disks/released-only"] },
  { begins: "With `force` that is so as well", checks: ["disks/force-releases", "disks/force-stops-nobody"] },
  { begins: "Idempotent: the same id", where: "images", checks: ["images/replays-keep-one"] },
  { begins: "Idempotent, and 204", where: "images", checks: ["images/deleted-are-not-kept"] },
  { begins: "Never shown, and not kept", checks: ["images/show-no-secrets"] },
  { begins: "Who has ranges and is refused", checks: ["pod-ranges/end-with-others-that-are-refused"] },
  { begins: "Idempotent.", where: "pod-ranges put", checks: ["pod-ranges/are-one-nodes"] },
  { begins: "Idempotent, and 204", where: "pod-ranges", checks: ["pod-ranges/are-one-nodes"] },
  { begins: "As kube-proxy does it", why: "A kit does not know by which program a stranger's image calls others" },
  { begins: "Idempotent.", where: "services put", checks: ["services/changes-want-their-base"] },
  { begins: "A `since` that is older", checks: ["events/an-unknown-revision-is-gone", "http/events-in-the-future"] },
  { begins: "*Long poll*", checks: ["http/long-poll-of-events", "http/a-long-poll-"] },
  { begins: "` the MachineEvent in one line", checks: ["events/come-while-watching"] },
  { begins: "`key=value`; repeated", checks: ["list/selects-by-every-label", "http/a-list-has-only"] },
  { begins: "Seconds; at most 60", why: "Longer waits than the kit's patience; what is waited for is checked" },
  { begins: "Safe in paths", checks: ["http/an-id-of-another-form-is-refused"] },
  { begins: "What a container is promised", checks: ["limits/"] },
  { begins: "What it may use at most", checks: ["limits/"] },
  { begins: "Relative to the volume's root", why: "A kit is not to try to break out of a stranger's host" },
  { begins: "A path of the machine itself", why: "Only the host's owner knows which paths are the machine's" },
  { begins: "A machine whose containers have it as the other", checks: ["disks/no-device-of-a-file-system"] },
  { begins: "A volume that is reserved", checks: ["disks/reservations-keep-others-out"] },
  { begins: "Relative, without `..`", why: "A kit is not to try to break out of a stranger's host" },
  { begins: "Attempts in a row that must succeed", checks: ["probes/readiness-decides-ready"] },
  { begins: "Attempts in a row that must fail", checks: ["probes/liveness-restarts"] },
  { begins: "Only what the host's owner gives", checks: ["create/a-device-of-nobody-is-refused"] },
  { begins: "Started once and never restarted", checks: ["ephemeral/never-restarts", "ephemeral/the-end"] },
  { begins: "A machine that is `stopped` is over", checks: ["restart/what-is-stopped-stays-stopped"] },
  { begins: "A backend that evicts machines", why: "A kit is not to run a host out of something" },
  { begins: "Another one is refused.", why: "Which runtimes there are is the backend's; tests of engine cri hold it" },
  { begins: "Never shown again.", checks: ["machine/shows-no-secrets"] },
  { begins: "With false, the machine's users", why: "What the host's users are cannot be seen from a machine" },
  { begins: "With 0 at most the 2 seconds", checks: ["stop/a-shorter-grace-shortens", "delete/with-force-kills"] },
  { begins: "Replaces all files of a volume at once", checks: ["files/patch-changes-the-content"] },
  {
    begins: "It is in effect when the machine shows it",
    checks: ["resize/a-machine-grows-and-shrinks-as-it-runs"],
    where: "machine_resources",
  },
  {
    begins: "`in_use` when the driver says that it cannot",
    why: "Which CSI drivers a host has is its owner's choice; tests of the backend hold it",
  },
  { begins: "Never falls.", checks: ["restart/always-restarts-and-counts"] },
  { begins: "One IPv4 and one IPv6", checks: ["http/replies-are-valid"] },
  { begins: "At least so much.", checks: ["disks/have-what-was-asked-for"] },
  { begins: "Never falls while the container lives.", checks: ["stats/show-what-runs"] },
];

export function contractRules(text = readFileSync(DOCUMENT, "utf8")): Rule[] {
  const found: Rule[] = [];
  const visit = (value: unknown, path: readonly string[]): void => {
    if (Array.isArray(value)) value.forEach((each: unknown, at) => visit(each, [...path, nameOf(each) ?? `${at}`]));
    else if (typeof value === "object" && value !== null)
      for (const [key, each] of Object.entries(value as Record<string, unknown>)) {
        if (key === "description" && typeof each === "string")
          found.push(...sentencesOf(each).map((sentence) => ({ where: placeOf(path), sentence })));
        else if (key !== "examples") visit(each, [...path, key]);
      }
  };
  visit(parse(text), []);
  return found.filter(({ sentence }) => IS_RULE.test(sentence));
}

const nameOf = (value: unknown): string | undefined => (value as { name?: string } | null)?.name;

/** What a table in a description says after its first line is told by the sentence before it. */
function sentencesOf(description: string): string[] {
  const whole = description.replaceAll(/\s+/g, " ").trim();
  return whole.split(/(?<=[.:;]) (?=[A-Z`*])/).map((sentence) => sentence.replace(/ \| .*$/, ""));
}

const placeOf = (path: readonly string[]): string =>
  path.filter((each) => !["paths", "components", "schemas", "properties", "parameters"].includes(each)).join(" ");

export function holderOf({ where, sentence }: Rule): Holder | undefined {
  return HOLDERS.find((each) => sentence.startsWith(each.begins) && where.includes(each.where ?? ""));
}

/** Those that no rule of the document has any more. */
export function idleHolders(rules: readonly Rule[]): string[] {
  const used = new Set(rules.map(holderOf));
  return HOLDERS.filter((each) => !used.has(each)).map(({ begins }) => begins);
}

/** The checks whose names begin so. */
export function checksOf({ checks = [] }: Holder): string[] {
  return CHECKS.map(({ name }) => name).filter((name) => checks.some((beginning) => name.startsWith(beginning)));
}

export function rulesRows(): string[][] {
  return contractRules().map((rule) => {
    const holder = holderOf(rule);
    const names = holder?.checks?.map((beginning) => `\`${beginning}\``).join(", ");
    const sentence = rule.sentence.replaceAll("|", "\\|");
    return [rule.where || "the API", sentence, names ?? holder?.why ?? "nothing yet"];
  });
}
