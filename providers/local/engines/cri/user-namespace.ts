/** A machine's users (bundle/machine-users.ts) in CRI's words. */
import { create } from "@bufbuild/protobuf";
import { MACHINE_USERS } from "../../bundle/machine-users.ts";
import {
  type IDMapping,
  IDMappingSchema,
  NamespaceMode,
  type PodSandboxStatus,
  type UserNamespace,
  UserNamespaceSchema,
} from "./api.gen.js";

/** @param hostId what the machine's root is on this host */
export function userNamespace(hostId: number): UserNamespace {
  const range = (): IDMapping => create(IDMappingSchema, { hostId, containerId: 0, length: MACHINE_USERS });
  return create(UserNamespaceSchema, { mode: NamespaceMode.POD, uids: [range()], gids: [range()] });
}

/** What a sandbox was made with; undefined when its users are the host's. */
export function usersOf(status: PodSandboxStatus | undefined): UserNamespace | undefined {
  const users = status?.linux?.namespaces?.options?.usernsOptions;
  return users?.mode === NamespaceMode.POD && users.uids.length > 0 ? users : undefined;
}
