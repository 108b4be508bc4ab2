import { dualStack } from "../backend/dual-stack.ts";

await dualStack("vm");
