/** @param dev as stat(2) has it, taken apart as makedev(3) puts it together */
export function deviceNumbers(dev: bigint): { major: bigint; minor: bigint } {
  return {
    major: ((dev >> 8n) & 0xfffn) | ((dev >> 32n) & ~0xfffn),
    minor: (dev & 0xffn) | ((dev >> 12n) & ~0xffn & 0xffffffffn),
  };
}
