import { nodeRange, nodeServices } from "../backend/node-range.ts";

await nodeRange("cri");
await nodeServices("cri");
