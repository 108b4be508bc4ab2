/**
 * The owner's policy for images, where the host has one: containers-policy.json(5). Which repositories are accepted and
 * rejected is kept to; an image that has to be signed is refused, because signatures are not verified here.
 */
import { existsSync, readFileSync } from "node:fs";
import { ContainerError } from "../engine.ts";
import { fullName, repository, type ImageReference } from "./reference.ts";

const POLICY_FILE = "/etc/containers/policy.json";

interface Policy {
  default?: { type?: string }[];
  transports?: { docker?: Record<string, { type?: string }[]> };
}

/**
 * @param file may be missing: then everything is accepted
 * @throws ContainerError ErrImagePull, SignatureValidationFailed
 */
export function assertAccepted(image: string, reference: ImageReference, file = POLICY_FILE): void {
  if (!existsSync(file)) return;
  let policy: Policy;
  try {
    policy = JSON.parse(readFileSync(file, "utf8")) as Policy;
  } catch (thrown) {
    throw new ContainerError("ErrImagePull", `${image}: ${file} of this host cannot be read`, { cause: thrown });
  }
  const scopes = policy.transports?.docker ?? {};
  const scope = scopesOf(reference).find((name) => Object.hasOwn(scopes, name));
  const required = scope === undefined ? policy.default : scopes[scope];
  // All of them have to hold, and a policy that asks for nothing is none.
  const types = (Array.isArray(required) ? required : []).map((requirement) => requirement?.type);
  if (types.length > 0 && types.every((type) => type === "insecureAcceptAnything")) return;
  if (types.includes("reject") || types.length === 0)
    throw new ContainerError("ErrImagePull", `${image}: rejected by the policy of this host (${file})`);
  throw new ContainerError(
    "SignatureValidationFailed",
    `image pull failed for ${image} because the signature validation failed: ${file} of this host asks for a signature, and vmlet verifies none`,
  );
}

/** Most specific first: the name, its repository and the folders of that, its host, `*.` and the domains of that. */
function scopesOf(reference: ImageReference): string[] {
  const scopes = [fullName(reference)];
  for (let name = repository(reference); name !== ""; name = name.slice(0, Math.max(name.lastIndexOf("/"), 0)))
    scopes.push(name);
  const labels = reference.registry.split(".");
  return [...scopes, ...labels.slice(1).map((_label, index) => `*.${labels.slice(index + 1).join(".")}`), ""];
}
