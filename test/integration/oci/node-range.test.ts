import { nodeRange, nodeServices } from "../backend/node-range.ts";

await nodeRange("oci");
await nodeServices("oci");
