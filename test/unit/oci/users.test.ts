import { describe, expect, test } from "vitest";
import { resolveUser, type UserQuery } from "../../../providers/local/bundle/users.ts";

const passwdFile = "root:x:0:0:root:/root:/bin/sh\napp:x:1000:1001:app:/home/app:/bin/sh\nbroken line\nx:y:z\n";
const groupFile = "root:x:0:\napp:x:1001:\nextra:x:2000:app,other\nmore:x:2001: app\n";
const resolve = (more: Partial<UserQuery> = {}) =>
  resolveUser({
    imageUser: undefined,
    user: undefined,
    group: undefined,
    runAsNonRoot: false,
    supplementalGroups: [],
    isStrict: false,
    passwdFile,
    groupFile,
    container: "a",
    pod: "web_default(u1)",
    ...more,
  });

describe("who a container runs as", () => {
  test.each<[string, Partial<UserQuery>, object]>([
    ["nobody said: root", {}, { uid: 0, gid: 0, supplementalGroups: [0], home: "/root" }],
    [
      "the image's name",
      { imageUser: "app" },
      { uid: 1000, gid: 1001, supplementalGroups: [1001, 2000, 2001], home: "/home/app" },
    ],
    [
      "the image's number, known",
      { imageUser: "1000" },
      { uid: 1000, gid: 1001, supplementalGroups: [1001, 2000, 2001], home: "/home/app" },
    ],
    ["the image's number, unknown", { imageUser: "77" }, { uid: 77, gid: 0, supplementalGroups: [0], home: "/" }],
    [
      "name and group",
      { imageUser: "app:extra" },
      { uid: 1000, gid: 2000, supplementalGroups: [2000, 2001], home: "/home/app" },
    ],
    [
      "the pod's user replaces the image's, with that user's groups",
      { imageUser: "root", user: 1000 },
      { uid: 1000, gid: 1001, supplementalGroups: [1001, 2000, 2001], home: "/home/app" },
    ],
    [
      "the image's group does not go with the pod's user",
      { imageUser: "app:2000", user: 5 },
      { uid: 5, gid: 0, supplementalGroups: [0], home: "/" },
    ],
    [
      "the pod's group",
      { imageUser: "app", group: 9 },
      { uid: 1000, gid: 9, supplementalGroups: [9, 2000, 2001], home: "/home/app" },
    ],
    [
      "supplemental groups come on top, once",
      { imageUser: "app", supplementalGroups: [2000, 50] },
      { uid: 1000, gid: 1001, supplementalGroups: [1001, 2000, 2001, 50], home: "/home/app" },
    ],
    [
      "strictly none of the groups that the image has its user in, but the user's own",
      { imageUser: "app", supplementalGroups: [50], isStrict: true },
      { uid: 1000, gid: 1001, supplementalGroups: [1001, 50], home: "/home/app" },
    ],
    [
      "without passwd and group files",
      { user: 3, passwdFile: "", groupFile: "" },
      { uid: 3, gid: 0, supplementalGroups: [0], home: "/" },
    ],
  ])("%s", (_title, query, expected) => expect(resolve(query)).toEqual(expected));

  test("an unknown name is an error that says where it was looked for", () =>
    expect(() => resolve({ imageUser: "ghost" })).toThrow(
      expect.objectContaining({ reason: "CreateContainerError", message: expect.stringContaining("/etc/passwd") }),
    ));
  test("an unknown group too", () =>
    expect(() => resolve({ imageUser: "app:ghosts" })).toThrow(/"ghosts".*\/etc\/group/));
});

describe("runAsNonRoot, with kubelet's words", () => {
  test.each<[string, Partial<UserQuery>, string]>([
    ["an image that runs as root", {}, "container has runAsNonRoot and image will run as root"],
    ["an image with user 0", { imageUser: "0" }, "image will run as root"],
    [
      "an image with a name",
      { imageUser: "app" },
      "container has runAsNonRoot and image has non-numeric user (app), cannot verify user is non-root",
    ],
    ["runAsUser 0", { user: 0 }, "container's runAsUser breaks non-root policy"],
  ])("%s is refused", (_title, query, message) =>
    expect(() => resolve({ ...query, runAsNonRoot: true })).toThrow(
      expect.objectContaining({ reason: "CreateContainerConfigError", message: expect.stringContaining(message) }),
    ),
  );
  test.each<[string, Partial<UserQuery>]>([
    ["an image with another number", { imageUser: "1000" }],
    ["the pod's own user", { imageUser: "app", user: 1000 }],
  ])("%s passes", (_title, query) => expect(resolve({ ...query, runAsNonRoot: true }).uid).toBe(1000));
});
