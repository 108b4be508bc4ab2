/** Platforms in Go's words, which Kubernetes and OCI use. */

/** What GOOS and GOARCH look like; also fit for a label's value. */
export const GO_NAME = /^[a-z0-9]{1,32}$/;

/** GOARCH of a processor that Node.js names otherwise. */
export function goArchitecture(nodeArch: string): string {
  return { x64: "amd64", ia32: "386", ppc64: "ppc64le" }[nodeArch] ?? nodeArch;
}
