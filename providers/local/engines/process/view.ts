/**
 * What a container of engine `process` sees of this host's files: all of them, and its volumes where it mounts them. A
 * mount namespace of its own has them there, which root may have, and most kernels give every user. Elsewhere they are
 * links below the container's home.
 */
import { mkdirSync, rmSync, symlinkSync } from "node:fs";
import { dirname, join } from "node:path";
import { findTool, run } from "../../host/command.ts";

export interface BoundPath {
  source: string;
  /** Where the container sees it. */
  target: string;
  writable: boolean;
}

/** How this process comes by a mount namespace; undefined: not at all. */
export type Namespaces = "root" | "user" | undefined;

const OPTIONS: Record<NonNullable<Namespaces>, readonly string[]> = {
  root: ["--mount", "--propagation", "private"],
  // With the user's own id inside as well, and the rights to mount until the command runs.
  user: ["--user", "--map-current-user", "--keep-caps", "--mount", "--propagation", "private"],
};

/** Some kernels give a namespace, and no right to mount anything in it: so something is mounted. */
export async function availableNamespaces(): Promise<Namespaces> {
  const unshare = findTool("unshare");
  if (unshare === undefined || process.platform !== "linux") return undefined;
  for (const kind of ["root", "user"] as const) {
    try {
      await run(unshare, [...OPTIONS[kind], "/bin/sh", "-c", "mount -t tmpfs tmpfs /tmp"]);
      return kind;
    } catch {
      // The next one, or none.
    }
  }
  return undefined;
}

/**
 * In the namespace: binds what there is a place for, and where one is lacking makes it in a root of memory, whose
 * folders are the host's. A folder of the host that lacks a place is covered by one of memory, with links to all that
 * is in it: nothing is written to the host.
 *
 *     ROOT CWD PIDFILE (SOURCE TARGET ro|rw)... -- COMMAND...
 *
 * What is written to PIDFILE says that the command runs: until then a signal would end this, and not reach it.
 */
const SCRIPT = `
set -e
path=$PATH; PATH=/usr/sbin:/usr/bin:/sbin:/bin
root=$1 cwd=$2; exec 9>"$3"; shift 3
ours=: covers=0
enter_root() {
  mount -t tmpfs -o mode=755 tmpfs "$root"
  for entry in /* /.[!.]*; do
    if [ -L "$entry" ]; then ln -s "$(readlink "$entry")" "$root$entry"
    elif [ -d "$entry" ]; then mkdir "$root$entry"; mount --rbind "$entry" "$root$entry"
    elif [ -e "$entry" ]; then : >"$root$entry"; mount --bind "$entry" "$root$entry"
    fi
  done
  cd "$root"
  pivot_root . .
  umount -l .
  cd /
  ours=":/:" 
}
cover() {
  covers=$((covers + 1))
  mkdir "/.vmlet-$covers"
  mount --rbind "$1" "/.vmlet-$covers"
  mount -t tmpfs -o mode=755 tmpfs "$1"
  ours="$ours$1:"
  covered=$1
  set -- "/.vmlet-$covers"/*
  if [ -e "$1" ] || [ -L "$1" ]; then ln -s "$@" "$covered/"; fi
  set -- "/.vmlet-$covers"/.[!.]*
  if [ -e "$1" ] || [ -L "$1" ]; then ln -s "$@" "$covered/"; fi
}
# The folder $1, made where it is lacking.
folder() {
  while [ ! -d "$1" ]; do
    lacking=$1
    while above=$(dirname "$lacking"); [ ! -d "$above" ]; do lacking=$above; done
    above=$(readlink -f "$above")
    case "$ours" in *":$above:"*) ;; *) if [ "$ours" = : ]; then enter_root; continue; fi; cover "$above" ;; esac
    made="$above/$(basename "$lacking")"
    made="/\${made#"\${made%%[!/]*}"}"
    mkdir "$made"
    ours="$ours$made:"
  done
}
# The file $1, made where it is lacking.
file() {
  folder "$(dirname "$1")"
  [ -e "$1" ] && return
  above=$(readlink -f "$(dirname "$1")")
  case "$ours" in
    *":$above:"*) ;;
    :) enter_root; file "$1"; return ;;
    *) cover "$above" ;;
  esac
  [ -e "$1" ] || : >"$1"
}
while [ "$1" != -- ]; do
  source=$1 target=$2 mode=$3; shift 3
  if [ -d "$source" ]; then folder "$target"; else file "$target"; fi
  mount --rbind "$source" "$target"
  if [ "$mode" = ro ]; then
    # What the host's mount forbids must stay forbidden.
    mount -o remount,bind,ro "$target" 2>/dev/null ||
      mount -o remount,bind,ro,nosuid,nodev "$target" 2>/dev/null ||
      mount -o remount,bind,ro,nosuid,nodev,noexec "$target"
  fi
done
shift
cd "$cwd"
PATH=$path
echo $$ >&9
exec 9>&-
exec "$@"
`;

/**
 * bash, where there is one: other shells take variables away whose names are none of theirs, such as `a.b`. With -p, no
 * variable of the container's changes what it does.
 */
function shell(): string[] {
  const bash = findTool("bash");
  return bash === undefined ? ["/bin/sh"] : [bash, "-p"];
}

/**
 * The command that runs `argv` with these paths in their places.
 * @param options.root an empty folder, for it alone
 * @param options.pidFile is written when `argv` begins
 */
export function inNamespace(
  kind: NonNullable<Namespaces>,
  options: { root: string; cwd: string; pidFile: string; paths: readonly BoundPath[]; argv: readonly string[] },
): string[] {
  const { root, cwd, pidFile, paths, argv } = options;
  mkdirSync(root, { recursive: true, mode: 0o700 });
  const places = paths.flatMap(({ source, target, writable }) => [source, target, writable ? "rw" : "ro"]);
  const unshare = findTool("unshare") ?? "unshare";
  return [unshare, ...OPTIONS[kind], ...shell(), "-c", SCRIPT, "vmlet", root, cwd, pidFile, ...places, "--", ...argv];
}

/** In which folder `inNamespace` has begun its command; undefined for a command that is not its. */
export function folderInView(argv: readonly string[]): string | undefined {
  const at = argv.indexOf(SCRIPT);
  return at < 0 ? undefined : argv[at + 3];
}

/** The command that runs `argv` beside the process that has such a namespace. */
export function besideProcess(
  kind: NonNullable<Namespaces>,
  { pid, cwd, argv }: { pid: number; cwd: string; argv: readonly string[] },
): string[] {
  const user = kind === "user" ? ["--user", "--preserve-credentials"] : [];
  const enter = [findTool("nsenter") ?? "nsenter", "--target", String(pid), "--mount", ...user];
  return [...enter, ...shell(), "-c", 'cd "$1" && shift && exec "$@"', "vmlet", cwd, ...argv];
}

/** Without a namespace: `HOME/etc/config` for `/etc/config`. */
export function linkBelow(home: string, paths: readonly BoundPath[]): void {
  // What lies within another is linked after it, and left out where that is somebody else's to write.
  for (const { source, target } of paths.toSorted((a, b) => a.target.length - b.target.length)) {
    const link = join(home, target);
    mkdirSync(dirname(link), { recursive: true });
    rmSync(link, { recursive: true, force: true });
    symlinkSync(source, link);
  }
}
