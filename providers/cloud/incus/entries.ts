/**
 * Entries in an Incus project. Incus has a compare-and-swap by ETag that is none: it compares in one transaction and
 * swaps in another, so that two who do both succeed. What holds is that a name is given once. So each version of an
 * entry is an object of its own, whose name ends in its number, and a write makes the next number:
 *
 * - Of several that write after the same version, one gets the name.
 * - The newest is the one that counts. Who has found a number free only because newer ones have made it free again sees
 *   these when it looks back, and takes its own away.
 * - Older ones are removed at any time, the oldest first: a removal that comes late finds a number that never counts
 *   again, and what could not be removed is never the newest that is left.
 * - An entry that is removed gets a last version that says so, which stays for an hour: longer than anything is on its
 *   way.
 *
 * The objects are profiles, which no instance uses: Incus has nothing smaller that carries words, and a certificate
 * that is restricted to one project may write them.
 */
import { createHash } from "node:crypto";
import { type CallOptions, type Clock, ProviderError } from "../../../src/provider/kit/index.ts";
import type { Entry, EntryStore } from "../cloud.ts";
import { type IncusClient, type IncusReply, namedIn } from "./client.ts";

const KEY = "user.vmlet-entry.";
const NAME = "user.vmlet-name";
const REMOVED = "user.vmlet-removed";
const PREFIX = "vmlet-entry-";
const KEPT_MS = 3_600_000;

interface Version {
  readonly stem: string;
  readonly number: number;
}

interface Profile {
  readonly name: string;
  readonly config?: Readonly<Record<string, string>>;
}

export class ProfileEntries implements EntryStore {
  readonly #client: IncusClient;
  readonly #clock: Clock;
  /** The number that an entry was last known by, so that it need not be looked for among all. */
  readonly #numbers = new Map<string, number>();

  constructor(client: IncusClient, clock: Clock) {
    this.#client = client;
    this.#clock = clock;
  }

  async get(name: string, options: CallOptions): Promise<Entry> {
    const stem = stemOf(name);
    for (;;) {
      const newest = await this.#newest(stem, options);
      if (newest === undefined) throw absent(name);
      const profile = await this.#profile(newest, options);
      // Another has just taken its place.
      if (profile === undefined) continue;
      const entry = entryOf(profile, newest.number);
      if (entry?.name !== name) throw absent(name);
      return entry;
    }
  }

  async list([key, value]: readonly [string, string], { signal }: CallOptions): Promise<Entry[]> {
    const query = { recursion: "1" };
    const reply = await this.#client.ask({ method: "GET", path: "profiles", query, signal });
    if (reply.error !== undefined) throw unknown(reply);
    const newest = new Map<string, { profile: Profile; number: number }>();
    const numbers = new Map<string, number[]>();
    for (const profile of namedIn<Profile>(reply.metadata)) {
      const version = versionOf(profile.name);
      if (version === undefined) continue;
      const { stem, number } = version;
      numbers.set(stem, [...(numbers.get(stem) ?? []), number]);
      if (number > (newest.get(stem)?.number ?? 0)) newest.set(stem, { profile, number });
    }
    for (const [stem, { profile }] of newest) {
      const at = Date.parse(profile.config?.[REMOVED] ?? "");
      if (this.#clock.now() - at > KEPT_MS) await this.#drop(stem, numbers.get(stem)!, signal);
    }
    return [...newest.values()]
      .flatMap(({ profile, number }) => entryOf(profile, number) ?? [])
      .filter(({ words }) => words[key] === value);
  }

  async create(name: string, words: Entry["words"], options: CallOptions): Promise<Entry> {
    const stem = stemOf(name);
    const newest = await this.#newest(stem, options);
    const before = newest && (await this.#profile(newest, options));
    if (newest !== undefined && before?.config?.[REMOVED] === undefined)
      throw new ProviderError("conflict", `there is an entry ${name}`);
    return await this.#write(name, { stem, number: newest?.number ?? 0 }, words, options);
  }

  async swap(name: string, words: Entry["words"], version: string, options: CallOptions): Promise<Entry> {
    return await this.#write(name, { stem: stemOf(name), number: Number(version) }, words, options);
  }

  async remove(name: string, version: string, options: CallOptions): Promise<void> {
    await this.#write(name, { stem: stemOf(name), number: Number(version) }, undefined, options);
  }

  /** @param words undefined: says that it is removed. @throws ProviderError conflict */
  async #write(
    name: string,
    before: Version,
    words: Entry["words"] | undefined,
    { signal }: CallOptions,
  ): Promise<Entry> {
    const next = { stem: before.stem, number: before.number + 1 };
    const config: Record<string, string> = { [NAME]: name };
    if (words === undefined) config[REMOVED] = new Date(this.#clock.now()).toISOString();
    for (const [key, value] of Object.entries(words ?? {})) config[KEY + key] = value;
    const body = { name: nameOf(next), description: "kept by vmlet", config, devices: {} };
    const reply = await this.#client.ask({ method: "POST", path: "profiles", body, signal });
    if (reply.error !== undefined) {
      // The name that is taken is told in words only.
      if ((await this.#profile(next, { signal })) !== undefined) throw changed(name);
      throw unknown(reply);
    }
    const numbers = await this.#numbersOf(next.stem, { signal });
    this.#numbers.set(next.stem, Math.max(...numbers, next.number));
    if (numbers.some((number) => number > next.number)) {
      await this.#drop(next.stem, [next.number], signal);
      throw changed(name);
    }
    const older = numbers.filter((number) => number < next.number);
    await this.#drop(next.stem, older, signal);
    return { name, words: words ?? {}, version: String(next.number) };
  }

  async #newest(stem: string, options: CallOptions): Promise<Version | undefined> {
    const known = this.#numbers.get(stem);
    if (known !== undefined) {
      const [itself, next] = await Promise.all([
        this.#profile({ stem, number: known }, options),
        this.#profile({ stem, number: known + 1 }, options),
      ]);
      if (itself !== undefined && next === undefined) return { stem, number: known };
    }
    const numbers = await this.#numbersOf(stem, options);
    if (numbers.length === 0) {
      this.#numbers.delete(stem);
      return undefined;
    }
    const number = Math.max(...numbers);
    this.#numbers.set(stem, number);
    return { stem, number };
  }

  async #numbersOf(stem: string, { signal }: CallOptions): Promise<number[]> {
    const reply = await this.#client.ask({ method: "GET", path: "profiles", signal });
    if (reply.error !== undefined) throw unknown(reply);
    const paths: unknown[] = Array.isArray(reply.metadata) ? reply.metadata : [];
    return paths.flatMap((path) => {
      if (typeof path !== "string") return [];
      const version = versionOf(new URL(path, "http://incus").pathname.split("/").at(-1));
      return version?.stem === stem ? [version.number] : [];
    });
  }

  /** Undefined when there certainly is none. */
  async #profile(version: Version, { signal }: CallOptions): Promise<Profile | undefined> {
    const reply = await this.#client.ask({ method: "GET", path: `profiles/${nameOf(version)}`, signal });
    if (reply.error === undefined) return reply.metadata as Profile;
    if (isGone(reply)) return undefined;
    throw unknown(reply);
  }

  /** Versions that do not count any more; what fails is done by the next that writes or lists. */
  async #drop(stem: string, numbers: readonly number[], signal: AbortSignal): Promise<void> {
    for (const number of numbers.toSorted((a, b) => a - b)) {
      const path = `profiles/${nameOf({ stem, number })}`;
      const reply = await this.#client.ask({ method: "DELETE", path, signal });
      if (reply.error !== undefined && !isGone(reply)) return;
    }
  }
}

/** Names of profiles are shorter than names of machines may be. */
const stemOf = (name: string): string => createHash("sha256").update(name).digest("hex").slice(0, 32);
const nameOf = ({ stem, number }: Version): string => `${PREFIX}${stem}-${number}`;

function versionOf(name: unknown): Version | undefined {
  const [, stem, number] = /^vmlet-entry-([0-9a-f]{32})-(\d{1,15})$/.exec(String(name)) ?? [];
  return stem === undefined ? undefined : { stem, number: Number(number) };
}

/** Undefined for one that is removed, or none of ours. */
function entryOf(profile: Profile, number: number): Entry | undefined {
  const config = profile.config ?? {};
  const name = config[NAME];
  if (name === undefined || config[REMOVED] !== undefined) return undefined;
  const words = Object.entries(config).flatMap(([key, value]) =>
    key.startsWith(KEY) ? [[key.slice(KEY.length), value] as const] : [],
  );
  return { name, words: Object.fromEntries(words), version: String(number) };
}

const isGone = ({ status, error = "" }: IncusReply): boolean => status === 404 && /profile not found/i.test(error);
const absent = (name: string) => new ProviderError("not_found", `there is no entry ${name}`);
const changed = (name: string) => new ProviderError("conflict", `the entry ${name} is another by now`);
const unknown = ({ status, error }: IncusReply) =>
  new ProviderError(status === 403 ? "unauthorized" : "unavailable", `Incus: ${error} (${status})`);
