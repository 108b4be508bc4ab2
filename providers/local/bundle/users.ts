/** Who a container's process runs as: numbers and names, by the image's own passwd and group files. */
import { ContainerError } from "../engine.ts";
import { toError } from "../../../src/provider/kit/index.ts";
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
 */
export function resolveUser(query: UserQuery): ResolvedUser {
  const passwd = parsePasswd(query.passwdFile);
  const groups = parseGroups(query.groupFile);
  const [imageUser = "", imageGroup] = (query.imageUser ?? "").split(":");
  checkNonRoot(query, imageUser);

  const wanted = query.user === undefined ? imageUser : String(query.user);
  const entry = isNumber(wanted)
    ? passwd.find(({ uid }) => uid === Number(wanted))
    : passwd.find(({ name }) => name === wanted);
  if (wanted !== "" && !isNumber(wanted) && entry === undefined)
    throw new ContainerError(
      "CreateContainerError",
      `container ${query.container}: no user ${JSON.stringify(wanted)} in the image's /etc/passwd`,
    );
  const uid = entry?.uid ?? (wanted === "" ? 0 : Number(wanted));
  const root = entry ?? passwd.find((candidate) => candidate.uid === uid);

  let gid = query.group;
  // A group in the image's User belongs to that user: it does not apply to another one.
  if (gid === undefined && query.user === undefined && imageGroup !== undefined && imageGroup !== "") {
    const named = isNumber(imageGroup) ? Number(imageGroup) : groups.find(({ name }) => name === imageGroup)?.gid;
    if (named === undefined)
      throw new ContainerError(
        "CreateContainerError",
        `container ${query.container}: no group ${JSON.stringify(imageGroup)} in the image's /etc/group`,
      );
    gid = named;
  }
  gid ??= root?.gid ?? 0;
  const member =
    root === undefined ? [] : groups.filter(({ members }) => members.includes(root.name)).map((group) => group.gid);
  if (member.length > MAX_IMAGE_GROUPS)
    throw new ContainerError(
      "CreateContainerError",
      `container ${query.container}: the image's /etc/group has its user in ${member.length} groups, more than the ${MAX_IMAGE_GROUPS} that this host accepts`,
    );
  // As with containerd, the primary group is one of them.
  const supplementalGroups = [...new Set([gid, ...member, ...query.supplementalGroups])];
  return { uid, gid, supplementalGroups, home: root?.home || (uid === 0 ? "/root" : "/") };
}

/**
 * The files that `resolveUser` wants, of an image that is unpacked at `rootfs`.
 * @throws ContainerError CreateContainerError for one that is too large to be searched at each start
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

/** kubelet's verifyRunAsNonRoot. */
function checkNonRoot({ runAsNonRoot, user, container, pod }: UserQuery, imageUser: string): void {
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
