/** QEMU processes of this host, found by their arguments. */
import { allProcesses, processArguments } from "../../host/proc.ts";

/** With the start time it is that process and no later one. */
export interface VmProcess {
  pid: number;
  startTime: string;
}

interface Place {
  /** Path of its control socket. */
  qmp: string;
}

/** The QEMU process of this place, when there is one: found by its arguments, so none is ever without an owner. */
export async function findVm(place: Place): Promise<VmProcess | undefined> {
  const [vm] = await findVms((args) => isOf(args, place));
  return vm;
}

/** Earlier versions named the socket as an option of QEMU's. */
export function isOf(args: string, { qmp }: Place): boolean {
  return args.includes(`\0unix:${qmp}\0`) || args.includes(`\0unix:${qmp},server=on`);
}

/** @param matches is given the arguments, each followed by a zero byte */
export async function findVms(matches: (args: string) => boolean): Promise<VmProcess[]> {
  const found: VmProcess[] = [];
  for (const { pid, startTime } of await allProcesses()) {
    if (matches((await processArguments(pid)) ?? "")) found.push({ pid, startTime });
  }
  return found;
}
