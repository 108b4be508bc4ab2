/** Who a container's process runs as: numbers and names, by the image's own passwd and group files. */
import { ContainerError, type MachineHome } from "../engine.ts";
import { type ContainerSpec, formatOwner, toError } from "../../../src/provider/kit/index.ts";
import { readWholeInRoot } from "./root-path.ts";

/** Of an image's /etc/passwd and /etc/group: read and searched at each start. */
const MAX_FILE_BYTES = 1 << 20;
/** Groups that an image may add a user to; they are part of the container's status. */
const MAX_IMAGE_GROUPS = 1024;

export interface ResolvedUser {
  uid: number;
  gid: number;
  supplementalGroups: number[];
  home: string;
}

export interface UserQuery {
  /** The image's `User`: `name`, `uid`, `name:group`, `uid:gid`... */
  imageUser: string | undefined;
  /** securityContext's numbers replace the image's. */
  user: number | undefined;
  group: number | undefined;
  runAsNonRoot: boolean;
  /** Added to what the image's group file says. */
  supplementalGroups: readonly number[];
  /** Whether the image's group file says nothing. */
  isStrict: boolean;
  /** Contents of /etc/passwd and /etc/group of the image; absent files are empty. */
  passwdFile: string;
  groupFile: string;
  container: string;
  /** The pod as kubelet's texts name it. */
  pod: string;
}

interface PasswdEntry {
  name: string;
  uid: number;
  gid: number;
  home: string;
}

/**
 * @throws ContainerError CreateContainerConfigError for what kubelet refuses, CreateContainerError for an unknown name
 * @internal
 */
export function resolveUser(query: UserQuery): ResolvedUser {
  const passwd = parsePasswd(query.passwdFile);
  const groups = parseGroups(query.groupFile);
  const [imageUser = "", imageGroup] = (query.imageUser ?? "").split(":");
  checkNonRoot(query, imageUser);

  const { uid, entry } = findUser(query, query.user === undefined ? imageUser : String(query.user), passwd);
  // A group in the image's User belongs to that user: it does not apply to another one.
  const isOfImage = query.user === undefined && query.group === undefined && imageGroup;
  const gid = query.group ?? (isOfImage ? findGroup(query, imageGroup, groups) : (entry?.gid ?? 0));
  const member =
    entry === undefined || query.isStrict
      ? []
      : groups.filter(({ members }) => members.includes(entry.name)).map((group) => group.gid);
  if (member.length > MAX_IMAGE_GROUPS)
    throw new ContainerError(
      "CreateContainerError",
      `container ${query.container}: the image's /etc/group has its user in ${member.length} groups, more than the ${MAX_IMAGE_GROUPS} that this host accepts`,
    );
  // As with containerd, the primary group is one of them.
  const supplementalGroups = [...new Set([gid, ...member, ...query.supplementalGroups])];
  return { uid, gid, supplementalGroups, home: entry?.home || (uid === 0 ? "/root" : "/") };
}

/** @param wanted a number or a name; empty for root */
function findUser(
  { container }: UserQuery,
  wanted: string,
  passwd: readonly PasswdEntry[],
): { uid: number; entry: PasswdEntry | undefined } {
  if (wanted === "" || isNumber(wanted)) {
    const uid = Number(wanted);
    return { uid, entry: passwd.find((entry) => entry.uid === uid) };
  }
  const entry = passwd.find(({ name }) => name === wanted);
  if (entry !== undefined) return { uid: entry.uid, entry };
  throw new ContainerError(
    "CreateContainerError",
    `container ${container}: no user ${JSON.stringify(wanted)} in the image's /etc/passwd`,
  );
}

/** @param wanted a number or a name */
function findGroup({ container }: UserQuery, wanted: string, groups: readonly { name: string; gid: number }[]): number {
  const gid = isNumber(wanted) ? Number(wanted) : groups.find(({ name }) => name === wanted)?.gid;
  if (gid !== undefined) return gid;
  throw new ContainerError(
    "CreateContainerError",
    `container ${container}: no group ${JSON.stringify(wanted)} in the image's /etc/group`,
  );
}

/**
 * The files that `resolveUser` wants, of an image that is unpacked at `rootfs`.
 * @throws ContainerError CreateContainerError for one that is too large to be searched at each start
 * @internal
 */
export function accountFiles(rootfs: string, container: string): Pick<UserQuery, "passwdFile" | "groupFile"> {
  try {
    return {
      passwdFile: readWholeInRoot(rootfs, "/etc/passwd", MAX_FILE_BYTES),
      groupFile: readWholeInRoot(rootfs, "/etc/group", MAX_FILE_BYTES),
    };
  } catch (thrown) {
    throw new ContainerError("CreateContainerError", `container ${container}: the image's ${toError(thrown).message}`, {
      cause: thrown,
    });
  }
}

/**
 * Who a container's processes are.
 * @param image that it is made from, unpacked at `rootfs`
 * @throws ContainerError as `resolveUser` and `accountFiles` do
 */
export function containerUser(
  machine: Pick<MachineHome, "id" | "spec">,
  spec: ContainerSpec,
  image: { user: string | undefined; rootfs: string },
): ResolvedUser {
  const { supplemental_groups: groups = [], fs_group: group } = machine.spec.security ?? {};
  return resolveUser({
    imageUser: image.user,
    user: spec.security?.user,
    group: spec.security?.group,
    runAsNonRoot: spec.security?.run_as_non_root === true,
    supplementalGroups: [...groups, ...(group === undefined ? [] : [group])],
    isStrict: machine.spec.security?.supplemental_groups_policy === "strict",
    ...accountFiles(image.rootfs, spec.name),
    container: spec.name,
    pod: formatOwner(machine.id, machine.spec.labels),
  });
}

/** kubelet's verifyRunAsNonRoot. @throws ContainerError CreateContainerConfigError */
export function checkNonRoot(
  { runAsNonRoot, user, container, pod }: Pick<UserQuery, "runAsNonRoot" | "user" | "container" | "pod">,
  imageUser: string,
): void {
  if (!runAsNonRoot) return;
  const refuse = (why: string) =>
    new ContainerError("CreateContainerConfigError", `${why} (pod: "${pod}", container: ${container})`);
  if (user !== undefined) {
    if (user === 0) throw refuse("container's runAsUser breaks non-root policy");
    return;
  }
  if (imageUser !== "" && !isNumber(imageUser))
    throw refuse(
      `container has runAsNonRoot and image has non-numeric user (${imageUser}), cannot verify user is non-root`,
    );
  if (imageUser === "" || Number(imageUser) === 0)
    throw refuse("container has runAsNonRoot and image will run as root");
}

function parsePasswd(text: string): PasswdEntry[] {
  return text.split("\n").flatMap((line) => {
    const [name = "", , uid = "", gid = "", , home = ""] = line.split(":");
    return name === "" || !isNumber(uid) || !isNumber(gid) ? [] : [{ name, uid: Number(uid), gid: Number(gid), home }];
  });
}

function parseGroups(text: string): { name: string; gid: number; members: string[] }[] {
  return text.split("\n").flatMap((line) => {
    const [name = "", , gid = "", members = ""] = line.split(":");
    return name === "" || !isNumber(gid)
      ? []
      : [{ name, gid: Number(gid), members: members.split(",").map((member) => member.trim()) }];
  });
}

function isNumber(text: string): boolean {
  return /^\d{1,10}$/.test(text);
}
