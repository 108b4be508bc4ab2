import { VmletError } from "../../../src/provider/kit/index.ts";

/** This host cannot be used as the backend's configuration says: the message names the field and the cure. */
export class HostError extends VmletError {
  readonly code = "HOST";
}
