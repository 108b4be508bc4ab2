/**
 * Paths inside volumes. A pod's texts are untrusted: a path that leaves its volume is refused here, before any
 * backend sees it.
 */

export const MAX_PATH_LENGTH = 4096;
const MAX_NAME_LENGTH = 255;

/**
 * What is wrong with a file's path in a volume, in the words of the kubelet's atomic writer; undefined when nothing is.
 */
export function filePathProblem(path: string): string | undefined {
  if (path === "") return `invalid path: must not be empty: ""`;
  if (path.startsWith("/")) return `invalid path: must be relative path: ${path}`;
  if (path.length > MAX_PATH_LENGTH) return `invalid path: must be less than or equal to ${MAX_PATH_LENGTH} characters`;
  const segments = path.split("/");
  for (const segment of segments) {
    if (segment === "..") return `invalid path: must not contain '..': ${path}`;
    if (Buffer.byteLength(segment) > MAX_NAME_LENGTH) {
      return `invalid path: filenames must be less than or equal to ${MAX_NAME_LENGTH} characters`;
    }
  }
  const first = segments[0] ?? "";
  if (first.startsWith("..") && first.length > 2) return `invalid path: must not start with '..': ${path}`;
  if (path.includes("\0")) return "invalid path: must not contain a NUL byte";
  if (cleanPath(path) === ".") return `invalid path: must name a file: ${path}`;
  return undefined;
}

/** What is wrong with a subPath, in the kubelet's words; undefined when nothing is. */
export function subPathProblem(path: string): string | undefined {
  if (path.length > MAX_PATH_LENGTH) return `error SubPath has ${path.length} characters, more than ${MAX_PATH_LENGTH}`;
  if (path.startsWith("/")) return `error SubPath \`${path}\` must not be an absolute path`;
  if (path.split("/").includes("..")) return `unable to provision SubPath \`${path}\`: must not contain '..'`;
  if (path.includes("\0"))
    return `unable to provision SubPath \`${path.replaceAll("\0", "\\0")}\`: must not contain a NUL byte`;
  return undefined;
}

/**
 * Drops empty and `.` segments, as Go's `filepath.Clean` does for a relative path without `..`; `.` when nothing is
 * left.
 */
export function cleanPath(path: string): string {
  const segments = path.split("/").filter((segment) => segment !== "" && segment !== ".");
  return segments.length === 0 ? "." : segments.join("/");
}
