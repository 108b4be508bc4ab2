/**
 * Talks to registries through `skopeo`: reads manifests, copies blobs. Knows nothing of what is on this host.
 *
 * Credentials go to skopeo in a file that has no name any more when they are written to it (an open descriptor of an
 * unlinked file on a tmpfs), so they are on no disk and nothing is left behind when this process is killed.
 */
import { randomBytes } from "node:crypto";
import { closeSync, existsSync, openSync, unlinkSync, writeSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { RegistryAuth } from "../../../src/provider/kit/index.ts";
import { ContainerError } from "../engine.ts";
import { CommandError, findTool, run, type CommandResult } from "../host/command.ts";
import {
  choosePlatform,
  digestOf,
  isIndex,
  type Manifest,
  MAX_MANIFEST_BYTES,
  readDocument,
  readManifest,
} from "./manifest.ts";
import { redact } from "./redact.ts";
import { matchingCredentials, repository, type ImageReference } from "./reference.ts";

interface RegistryOptions {
  /**
   * Hosts (with port) that may be spoken to without TLS or with a certificate that no CA of this host vouches for.
   * Loopback may always.
   */
  insecureRegistries: readonly string[];
  /** OCI names: `linux`, `amd64`. */
  platform: { os: string; architecture: string };
  /** skopeo's scratch folder. */
  tmpDir: string;
}

/** What a reference means right now. */
export interface ResolvedImage extends Manifest {
  /** Digest of what the reference names: an index where the registry has one, else the manifest. */
  digest: string;
  /** Digest of this platform's manifest. Where a digest led to it, the registry's answer was held against that. */
  manifestDigest: string;
  /** Of this platform's manifest. */
  manifestBytes: number;
  /** The credential that the registry accepted; undefined for anonymous. */
  credential: RegistryAuth | undefined;
}

const LOOPBACK = /^(?:localhost|127\.\d+\.\d+\.\d+|\[::1\])(?::\d+)?$/;

export class Registry {
  readonly #options: RegistryOptions;

  constructor(options: RegistryOptions) {
    this.#options = options;
  }

  /**
   * Reads the manifest for this platform; tries each matching credential in turn, without any when none matches.
   * @throws ContainerError
   */
  async resolve(
    image: string,
    reference: ImageReference,
    auth: readonly RegistryAuth[],
    signal: AbortSignal,
  ): Promise<ResolvedImage> {
    const matching = matchingCredentials(reference, auth);
    const candidates: (RegistryAuth | undefined)[] = matching.length > 0 ? matching : [undefined];
    for (const [index, credential] of candidates.entries()) {
      try {
        return await this.#resolveWith(image, reference, credential, signal);
      } catch (cause) {
        const denied = cause instanceof CommandError && isDenied(cause.stderr);
        if (denied && index + 1 < candidates.length) continue;
        throw pullError(image, cause, signal);
      }
    }
    throw new Error("unreachable: there is always a candidate");
  }

  /** Copies manifest, config and layers into the OCI layout at `layoutDir`, tagged `image`. Digests are verified. */
  async copy(
    image: string,
    reference: ImageReference,
    resolved: ResolvedImage,
    layoutDir: string,
    signal: AbortSignal,
  ): Promise<void> {
    const source = `docker://${repository(reference)}@${resolved.manifestDigest}`;
    try {
      await this.#skopeo(
        reference,
        resolved.credential,
        (flags) => [
          "copy",
          "--quiet",
          "--dest-compress-format",
          "gzip",
          ...flags("src-"),
          source,
          `oci:${layoutDir}:image`,
        ],
        signal,
      );
    } catch (cause) {
      throw pullError(image, cause, signal);
    }
  }

  async #resolveWith(
    image: string,
    reference: ImageReference,
    credential: RegistryAuth | undefined,
    signal: AbortSignal,
  ): Promise<ResolvedImage> {
    const named = await this.#manifest(reference, reference.digest ?? reference.tag!, credential, signal);
    const digest = reference.digest ?? digestOf(named);
    const document = readDocument(image, named, digest);
    if (!isIndex(document)) {
      const manifest = { manifestDigest: digest, manifestBytes: named.length };
      return { digest, ...manifest, ...readManifest(image, document), credential };
    }
    const manifestDigest = choosePlatform(image, document, this.#options.platform);
    const content = await this.#manifest(reference, manifestDigest, credential, signal);
    const manifest = readManifest(image, readDocument(image, content, manifestDigest));
    return { digest, manifestDigest, manifestBytes: content.length, ...manifest, credential };
  }

  async #manifest(
    reference: ImageReference,
    tagOrDigest: string,
    credential: RegistryAuth | undefined,
    signal: AbortSignal,
  ): Promise<Buffer> {
    const name = `docker://${repository(reference)}${tagOrDigest.startsWith("sha256:") ? "@" : ":"}${tagOrDigest}`;
    const result = await this.#skopeo(
      reference,
      credential,
      (flags) => ["inspect", "--raw", ...flags(""), name],
      signal,
    );
    return result.stdout;
  }

  async #skopeo(
    reference: ImageReference,
    credential: RegistryAuth | undefined,
    args: (flags: (prefix: string) => string[]) => string[],
    signal: AbortSignal,
  ): Promise<CommandResult> {
    const insecure = LOOPBACK.test(reference.registry) || this.#options.insecureRegistries.includes(reference.registry);
    const fd3 = openAuthFile(reference, credential);
    const flags = (prefix: string) => [
      "--authfile=/proc/self/fd/3",
      ...(insecure ? [`--${prefix}tls-verify=false`] : []),
    ];
    try {
      return await run(findTool("skopeo") ?? "skopeo", ["--tmpdir", this.#options.tmpDir, ...args(flags)], {
        fd3,
        signal,
        maxOutputBytes: MAX_MANIFEST_BYTES,
      });
    } catch (cause) {
      if (!(cause instanceof CommandError)) throw cause;
      // Here, and without the cause: nothing that is made of it later, an event or a log line, has the rest.
      const { command, exitCode, stderr } = cause;
      throw new CommandError(command, exitCode, redact(lastMessage(stderr) ?? ""), redact(cause.message));
    } finally {
      closeSync(fd3);
    }
  }
}

/** Also used without a credential: skopeo must not fall back on credentials that this host's user happens to have. */
function openAuthFile(reference: ImageReference, credential: RegistryAuth | undefined): number {
  const folder = existsSync("/dev/shm") ? "/dev/shm" : tmpdir();
  const path = join(folder, `vmlet-auth-${randomBytes(8).toString("hex")}`);
  const fd = openSync(path, "wx+", 0o600);
  unlinkSync(path);
  const auths: Record<string, object> = {};
  if (credential !== undefined) {
    auths[reference.registry === "docker.io" ? "https://index.docker.io/v1/" : reference.registry] = {
      auth: Buffer.from(`${credential.username ?? ""}:${credential.password ?? ""}`).toString("base64"),
      ...(credential.identity_token === undefined ? {} : { identitytoken: credential.identity_token }),
    };
  }
  writeSync(fd, JSON.stringify({ auths }), 0);
  return fd;
}

function isDenied(stderr: string): boolean {
  return /unauthorized|authentication required|access to the resource is denied|invalid username\/password|requested access/i.test(
    stderr,
  );
}

/** The part of skopeo's output that helps a person. Aborts pass through unchanged. */
function pullError(image: string, cause: unknown, signal: AbortSignal): Error {
  if (signal.aborted) return signal.reason as Error;
  if (cause instanceof ContainerError) return cause;
  if (!(cause instanceof CommandError))
    return new ContainerError("ErrImagePull", `${image}: ${String(cause)}`, { cause });
  const text = cause.stderr || cause.message;
  if (isDenied(text))
    return new ContainerError(
      "ErrImagePull",
      `${image}: pull access denied, the repository does not exist or may require authorization: ${text}`,
      { cause },
    );
  if (/manifest unknown|name unknown|not found|repository name not known/i.test(text))
    return new ContainerError("ErrImagePull", `${image}: not found: ${text}`, { cause });
  if (
    /connection refused|no such host|i\/o timeout|no route to host|network is unreachable|connection reset|TLS handshake|server gave HTTP response|: EOF$|50[0234] /i.test(
      text,
    )
  )
    return new ContainerError(
      "RegistryUnavailable",
      `image pull failed for ${image} because the registry is unavailable: ${text}`,
      { cause },
    );
  if (/Source image rejected|signature/i.test(text))
    return new ContainerError(
      "SignatureValidationFailed",
      `image pull failed for ${image} because the signature validation failed: ${text}`,
      { cause },
    );
  return new ContainerError("ErrImagePull", `${image}: ${text}`, { cause });
}

/** skopeo logs as `time="..." level=fatal msg="..."`, the fatal line last. */
function lastMessage(stderr: string): string | undefined {
  const quoted = [...stderr.matchAll(/level=(?:fatal|error) msg=("(?:[^"\\]|\\.)*")/g)].at(-1)?.[1];
  if (quoted === undefined) return stderr.trim().split("\n").at(-1);
  try {
    return JSON.parse(quoted) as string;
  } catch {
    return quoted;
  }
}
