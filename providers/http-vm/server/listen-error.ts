import { VmletError } from "../../../src/provider/kit/index.ts";

/** The Machine API cannot be served at its address: the message names the address and the cure. */
export class ListenError extends VmletError {
  readonly code = "LISTEN";
}
