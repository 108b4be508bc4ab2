/*
 * fixed PROGRAM ARGUMENT...: runs a program at addresses that are the same each time. An emulated processor keeps its
 * translation by address, so the second run takes a third of the time. Init and all that comes of it run so, the
 * containers' processes excepted: their configuration gives them back the usual personality, with random addresses.
 */
#include "linux.h"

enum { ADDR_NO_RANDOMIZE = 0x40000 };

int main(int argc, char **argv, char **envp) {
  if (argc < 2) return 2;
  call(PERSONALITY, (long)ADDR_NO_RANDOMIZE);
  call(EXECVE, argv[1], argv + 1, envp);
  return 127;
}
