/** The node plugin of a CSI driver as a process of its own; the argument is its socket among those of the registry. */
import { rmSync } from "node:fs";
import { NodeServiceCapability_RPC_Type as Rpc } from "../../../src/csi/api.gen.js";
import { TestCsiDriver } from "../../support/csi-driver.ts";

const [, , socket = ""] = process.argv;
// The one before it may have been killed.
rmSync(socket, { force: true });
const driver = new TestCsiDriver();
driver.capabilities = [Rpc.STAGE_UNSTAGE_VOLUME, Rpc.EXPAND_VOLUME];
await driver.listen(socket);
