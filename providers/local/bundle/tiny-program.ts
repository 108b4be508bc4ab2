/**
 * Programs of a few instructions, made here: for what only a system call can do, on hosts that need not have a program
 * for it.
 */

const BASE_ADDRESS = 0x400000n;
const HEADERS_SIZE = 64 + 56;
const X86_64 = 62;

/** An ELF executable for x86-64 of position-independent code. */
export function tinyProgram(code: Buffer): Buffer {
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
