import { prewarmedImages } from "../backend/prewarmed-images.ts";

await prewarmedImages("oci");
