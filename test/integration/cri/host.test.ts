import { HOST, hostAccessTests } from "../backend/host-access.ts";
import { onCri } from "./on-cri.ts";

await onCri("access to the host on engine cri", { host: HOST }, hostAccessTests);
