import { devicePluginTests } from "../backend/device-plugins.ts";

await devicePluginTests("oci");
