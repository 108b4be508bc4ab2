/**
 * The first process of a shared process namespace: it must outlive the containers and reap what they leave. A program
 * of a few instructions, made here, because a host need not have a static one: ignore SIGCHLD (then the kernel reaps),
 * and wait for ever.
 */

const BASE_ADDRESS = 0x400000n;
const HEADERS_SIZE = 64 + 56;
const X86_64 = 62;

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

/** An ELF executable for x86-64 of position-independent code. */
function tinyProgram(code: Buffer): Buffer {
  const size = BigInt(HEADERS_SIZE + code.length);
  const headers = Buffer.alloc(HEADERS_SIZE);
  headers.write("\x7fELF\x02\x01\x01", 0, "latin1");
  headers.writeUInt16LE(2, 16); // executable
  headers.writeUInt16LE(X86_64, 18);
  headers.writeUInt32LE(1, 20);
  headers.writeBigUInt64LE(BASE_ADDRESS + BigInt(HEADERS_SIZE), 24); // entry
  headers.writeBigUInt64LE(64n, 32); // program headers
  headers.writeUInt16LE(64, 52);
  headers.writeUInt16LE(56, 54);
  headers.writeUInt16LE(1, 56);
  headers.writeUInt32LE(1, 64); // PT_LOAD
  headers.writeUInt32LE(5, 68); // readable, executable
  headers.writeBigUInt64LE(BASE_ADDRESS, 80);
  headers.writeBigUInt64LE(BASE_ADDRESS, 88);
  headers.writeBigUInt64LE(size, 96);
  headers.writeBigUInt64LE(size, 104);
  headers.writeBigUInt64LE(4096n, 112);
  return Buffer.concat([headers, code]);
}
