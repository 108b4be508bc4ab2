/** User namespaces of machines on engine cri, by a runc that has them. */
import { missingForRunc } from "../../support/containerd.ts";
import { userTests } from "../backend/users.ts";
import { onCri } from "./on-cri.ts";

const missing = [(await missingForRunc()) ?? []].flat();

await onCri("user namespaces on engine cri", { missing, allowPrivileged: true }, userTests);
