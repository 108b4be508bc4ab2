import { nodeRange } from "../backend/node-range.ts";

await nodeRange("oci");
