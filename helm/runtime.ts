/**
 * Builds what the backend's image has of Go modules, by the Dockerfile's own commands, for any architecture: Go
 * compiles for all of them; what is C is compiled by Debian's compiler for that one, against headers and libraries of
 * the Debian that the image is made of. The same modules, Go and compiler of C give the same bytes.
 */
import { execFileSync } from "node:child_process";
import { mkdir, rm } from "node:fs/promises";
import { join } from "node:path";
import { debianTree, type Architecture } from "./debian.ts";
import { buildOf, dockerStage } from "./dockerfile.ts";

/** As Debian calls them. */
const TRIPLETS: Record<Architecture, string> = { amd64: "x86_64-linux-gnu", arm64: "aarch64-linux-gnu" };
/** What a person may have set for other builds, and would change this one's bytes. */
const NEUTRAL = {
  ...{ GOFLAGS: "", GOEXPERIMENT: "", GOWORK: "off", GOFIPS140: "off", GO111MODULE: "on" },
  ...{ GOOS: "linux", GOAMD64: "v1", GOARM64: "v8.0" },
  ...{ CGO_CFLAGS: "-O2 -g", CGO_CPPFLAGS: "", CGO_LDFLAGS: "-O2 -g" },
};

/** The compiler of C for an architecture, by its Debian name on any host, and the package that has it. */
export function compilerFor(architecture: Architecture): { tool: string; package: string } {
  const tool = `${TRIPLETS[architecture]}-gcc`;
  const native = process.arch === "arm64" ? "arm64" : "amd64";
  return { tool, package: architecture === native ? "gcc" : `gcc-${TRIPLETS[architecture].replace("_", "-")}` };
}

/**
 * @param folder must be there, and empty
 * @returns the folder with the programs
 */
export async function buildRuntime(folder: string, architecture: Architecture): Promise<string> {
  const { packages, commands, env } = buildOf(await dockerStage("runtime"));
  const [bin, sysroot] = [join(folder, "bin"), join(folder, "sysroot")];
  for (const each of [bin, sysroot]) await mkdir(each);
  const headers = packages.filter((name) => name.endsWith("-dev"));
  await debianTree({ folder: sysroot, architecture, packages: headers, kind: "with dependencies" });
  const forTarget = {
    GOARCH: architecture,
    CC: `${compilerFor(architecture).tool} --sysroot=${sysroot}`,
    PKG_CONFIG_SYSROOT_DIR: sysroot,
    PKG_CONFIG_LIBDIR: join(sysroot, "usr/lib", TRIPLETS[architecture], "pkgconfig"),
  };
  for (const command of commands) {
    const here = command.replaceAll("/runtime/bin", '"$BIN"').replace(/^cd \/runtime/, 'cd "$MODULES"');
    const places = { BIN: bin, MODULES: join(import.meta.dirname, "runtime") };
    execFileSync("sh", ["-ec", here], {
      env: { ...process.env, ...NEUTRAL, ...env, ...forTarget, ...places },
      stdio: ["ignore", "ignore", "inherit"],
    });
  }
  await rm(sysroot, { recursive: true });
  return bin;
}
