/** Devices of this host in OCI terms: a node, or all nodes in a folder such as /dev/dri. */
import { readdirSync, realpathSync, statSync } from "node:fs";
import { join, relative } from "node:path";
import { toError } from "../../../src/provider/kit/index.ts";
import type { DeviceGrant } from "../devices.ts";
import { ContainerError } from "../engine.ts";
import { deviceNumbers } from "../host/device-numbers.ts";
import type { BundleInput } from "./bundle.ts";

type OciDevice = NonNullable<BundleInput["devices"]>["nodes"][number];

/** @throws ContainerError when this host has no such device */
export function deviceNodes(container: string, nodes: DeviceGrant["nodes"]): OciDevice[] {
  return nodes.flatMap(({ path, hostPath, permissions }) => {
    const found = (of: string) => {
      const device = deviceOf(of);
      return device === undefined
        ? []
        : [{ ...device, path: join(path, relative(hostPath, of)), hostPath: of, access: permissions }];
    };
    try {
      const isFolder = statSync(hostPath).isDirectory();
      const devices = isFolder ? listed(realpathSync(hostPath), hostPath).flatMap(found) : found(hostPath);
      if (devices.length === 0) throw new Error("it is no device");
      return devices;
    } catch (thrown) {
      throw new ContainerError(
        "CreateContainerError",
        `container ${container}: ${hostPath}: ${toError(thrown).message}`,
        {
          cause: thrown,
        },
      );
    }
  });
}

/** What is in a folder, by the name under which the folder is known. */
function listed(folder: string, name: string): string[] {
  return readdirSync(folder, { recursive: true, encoding: "utf8" }).map((each) => join(name, each));
}

/** Undefined for what is no device. */
function deviceOf(path: string): Omit<OciDevice, "path" | "hostPath" | "access"> | undefined {
  const stats = statSync(path);
  if (!stats.isCharacterDevice() && !stats.isBlockDevice()) return undefined;
  const { major, minor } = deviceNumbers(BigInt(stats.rdev));
  return {
    type: stats.isBlockDevice() ? "b" : "c",
    major: Number(major),
    minor: Number(minor),
    fileMode: stats.mode & 0o777,
    uid: stats.uid,
    gid: stats.gid,
  };
}
