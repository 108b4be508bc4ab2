/*
 * timer: has the i8254's first timer count down once, and never again. From power-on it does so 18 times a second, and Linux leaves
 * it at that where it has a better one: QEMU would be woken 36 times a second in every idle VM.
 */
#include "linux.h"

enum { COUNTER = 0x40, CONTROL = 0x43 };
/* Counter 0, both bytes of its count, mode 0: "interrupt on terminal count". */
enum { ONCE = 0x30 };

static void out(u16 port, u8 value) {
  asm volatile("outb %b0, %w1" : : "a"(value), "d"(port));
}

int main() {
  if (call(IOPERM, (long)COUNTER, 4L, 1L) < 0) return 1;
  out(CONTROL, ONCE);
  out(COUNTER, 0);
  out(COUNTER, 0);
  return 0;
}
