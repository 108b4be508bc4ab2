/**
 * The token, certificates and CA of a backend, read from files and read again when a file changes, so that rotation
 * needs no restart. Values never come from the command line or the environment, where others can see them.
 */
import { readFile, stat } from "node:fs/promises";
import { certificatesFault, type Clock, pairFault, ProviderError } from "../../src/provider/kit/index.ts";

/** How often a file is looked at, at most, in milliseconds. */
const CHECK_MS = 1000;

export interface CredentialFiles {
  tokenFile?: string | undefined;
  caFile?: string | undefined;
  certFile?: string | undefined;
  keyFile?: string | undefined;
}

export interface Credentials {
  token: string | undefined;
  ca: Buffer | undefined;
  cert: Buffer | undefined;
  key: Buffer | undefined;
}

export class CredentialStore {
  readonly #files: CredentialFiles;
  readonly #clock: Clock;
  #stamps = "";
  #checkedAt = -Infinity;
  #current: Promise<Credentials> | undefined;

  constructor(files: CredentialFiles, clock: Clock) {
    this.#files = files;
    this.#clock = clock;
  }

  /** The same object as long as no file changed. @throws ProviderError unauthorized when a file cannot be read */
  async read(): Promise<Credentials> {
    const now = this.#clock.monotonic();
    if (this.#current !== undefined && now - this.#checkedAt < CHECK_MS) return this.#current;
    this.#checkedAt = now;
    const stamps = await this.#stamp();
    if (this.#current === undefined || stamps !== this.#stamps) {
      this.#stamps = stamps;
      this.#current = this.#load();
      this.#current.catch(() => {
        this.#current = undefined;
      });
    }
    return this.#current;
  }

  /** Looks at the files at the next read, whenever that is: after the backend refused what they hold. */
  expire(): void {
    this.#checkedAt = -Infinity;
  }

  async #stamp(): Promise<string> {
    const stamps = await Promise.all(
      Object.values(this.#files)
        .filter((path) => path !== undefined)
        .map((path) =>
          stat(path, { bigint: true }).then(
            (found) => `${found.mtimeNs} ${found.size} ${found.ino}`,
            () => "absent",
          ),
        ),
    );
    return stamps.join(";");
  }

  async #load(): Promise<Credentials> {
    const { tokenFile, caFile, certFile, keyFile } = this.#files;
    const [token, ca, cert, key] = await Promise.all([read(tokenFile), read(caFile), read(certFile), read(keyFile)]);
    const text = token?.toString("utf8").trim();
    if (text !== undefined && !/^[\x21-\x7e]+$/.test(text)) {
      throw new ProviderError("unauthorized", `the token file ${tokenFile} must hold one line of printable characters`);
    }
    const caFault = ca && certificatesFault(ca);
    if (caFault !== undefined) throw new ProviderError("unauthorized", `provider.caFile: ${caFile} ${caFault}`);
    const ownFault =
      cert &&
      key &&
      pairFault({ cert, key }, { cert: `provider.certFile ${certFile}`, key: `provider.keyFile ${keyFile}` });
    if (ownFault !== undefined) throw new ProviderError("unauthorized", ownFault);
    return { token: text, ca, cert, key };
  }
}

async function read(path: string | undefined): Promise<Buffer | undefined> {
  if (path === undefined) return undefined;
  try {
    return await readFile(path);
  } catch (thrown) {
    throw new ProviderError("unauthorized", `the credential file ${path} cannot be read`, { cause: thrown });
  }
}
