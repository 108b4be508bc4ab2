/** The node plugin of a CSI driver as a process of its own; the argument is its socket among those of the registry. */
import { rmSync } from "node:fs";
import { TestCsiDriver } from "../../support/csi-driver.ts";

const [, , socket = ""] = process.argv;
// The one before it may have been killed.
rmSync(socket, { force: true });
await new TestCsiDriver().listen(socket);
