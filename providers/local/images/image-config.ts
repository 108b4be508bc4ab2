/** The part of an image's configuration that decides how its containers run, with the bounds of what one may cost. */
import { ContainerError, type ImageConfig } from "../engine.ts";

/** Linux runs nothing with a longer argument or variable (MAX_ARG_STRLEN). */
const MAX_STRING_BYTES = 128 * 1024;
/** Environment and command together: each start and each command beside the container carries them. */
const MAX_TOTAL_BYTES = 256 * 1024;
const MAX_STRINGS = 4096;
/** PATH_MAX. */
const MAX_NAME_BYTES = 4096;

/**
 * Wrong types count as absent.
 * @param image names it in messages
 * @throws ContainerError ErrImagePull for one that no container could be started with, or only at the cost of other
 *   pods
 */
export function imageConfig(image: string, document: unknown): ImageConfig {
  const raw = ((document as Record<string, unknown> | null)?.["config"] ?? {}) as Record<string, unknown>;
  const refuse = (what: string) =>
    new ContainerError("ErrImagePull", `${image}: its configuration ${what} than this host accepts`);
  const text = (key: string) => {
    const value = raw[key];
    if (typeof value !== "string" || value === "") return undefined;
    if (Buffer.byteLength(value) > MAX_NAME_BYTES) throw refuse(`has a longer ${key}`);
    return value;
  };
  let total = 0;
  const list = (key: string) => {
    const value = raw[key];
    if (!Array.isArray(value)) return undefined;
    if (value.length > MAX_STRINGS) throw refuse(`has ${value.length} entries of ${key}, more`);
    if (!value.every((item) => typeof item === "string")) return undefined;
    for (const item of value) {
      const bytes = Buffer.byteLength(item);
      total += bytes;
      if (bytes > MAX_STRING_BYTES) throw refuse(`has an entry of ${key} with ${bytes} bytes, more`);
    }
    return value;
  };
  const found = {
    entrypoint: list("Entrypoint"),
    cmd: list("Cmd"),
    env: list("Env"),
    user: text("User"),
    workingDir: text("WorkingDir"),
    stopSignal: text("StopSignal"),
  };
  if (total > MAX_TOTAL_BYTES) throw refuse(`has ${total} bytes of Entrypoint, Cmd and Env, more`);
  return Object.fromEntries(Object.entries(found).filter(([, value]) => value !== undefined));
}
