/**
 * The first process of a shared process namespace: it must outlive the containers and reap what they leave. It ignores
 * SIGCHLD (then the kernel reaps), and waits for ever.
 */
import { tinyProgram } from "./tiny-program.ts";

/** rt_sigaction(SIGCHLD, &{SIG_IGN}, NULL, 8); for (;;) pause(); */
const CODE = Buffer.from(
  [
    "bf11000000", // mov edi, 17
    "488d3518000000", // lea rsi, [rip + 24]: the sigaction behind the code
    "31d2", // xor edx, edx
    "41ba08000000", // mov r10d, 8
    "b80d000000", // mov eax, 13
    "0f05", // syscall
    "b822000000", // mov eax, 34
    "0f05", // syscall
    "ebf7", // jmp to "mov eax, 34"
    "0100000000000000", // sa_handler = SIG_IGN
    "0000000000000000", // sa_flags
    "0000000000000000", // sa_restorer
    "0000000000000000", // sa_mask
  ].join(""),
  "hex",
);

/** The program; undefined for processors that it is not written for. */
export function pauseProgram(nodeArch: string): Buffer | undefined {
  return nodeArch === "x64" ? tinyProgram(CODE) : undefined;
}
