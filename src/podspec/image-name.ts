/** Names of images: what containers are told, and what backends report, may spell one image in two ways. */

/** Whether two references name the same image: backends may report `docker.io/library/nginx:latest` for `nginx`. */
export function isSameImage(a: string, b: string): boolean {
  return a === b || normalizeImage(a) === normalizeImage(b);
}

/**
 * The full form of an image reference: registry, `library/` on Docker Hub, tag `latest` when neither tag nor digest is
 * given.
 */
export function normalizeImage(image: string): string {
  const slash = image.indexOf("/");
  const first = slash === -1 ? "" : image.slice(0, slash);
  const hasRegistry = first.includes(".") || first.includes(":") || first === "localhost";
  let name = hasRegistry ? image : `docker.io/${image}`;
  name = name
    .replace(/^(index|registry-1)\.docker\.io\//, "docker.io/")
    .replace(/^docker\.io\/([^/]+)$/, "docker.io/library/$1");
  const isTagged = name.includes("@") || name.slice(name.lastIndexOf("/") + 1).includes(":");
  return isTagged ? name : `${name}:latest`;
}
