#!/usr/bin/env node
/**
 * `vmlet guest` as a program of its own, which the image of VMs starts: it loads what a guest runs and no other
 * command, for each pod that gets a new VM waits for it.
 */
import { failWith } from "./exit.ts";
import { guestCommand } from "./guest.ts";

try {
  await guestCommand().parseAsync();
} catch (thrown) {
  failWith(thrown);
}
