/*
 * frequency: prints the kHz of the processor's time-stamp counter. It runs on the host, before the first VM does: an emulated
 * guest has the host's counter, and cannot measure it on a busy host.
 */
#include "linux.h"

enum { CLOCK_MONOTONIC_RAW = 4, SAMPLE_MS = 250 };

static u64 counter(void) {
  u32 low, high;
  asm volatile("rdtsc" : "=a"(low), "=d"(high));
  return (u64)high << 32 | low;
}

static u64 nanoseconds(void) {
  struct timespec time;
  call(CLOCK_GETTIME, (long)CLOCK_MONOTONIC_RAW, &time);
  return time.seconds * 1000000000 + time.nanoseconds;
}

int main(void) {
  struct timespec sample;
  char text[24];
  int at = sizeof text;
  u64 ticks, elapsed, khz;
  sample.seconds = 0;
  sample.nanoseconds = SAMPLE_MS * 1000000;
  elapsed = nanoseconds();
  ticks = counter();
  call(NANOSLEEP, &sample, 0L);
  elapsed = nanoseconds() - elapsed;
  ticks = counter() - ticks;
  khz = ticks * 1000000 / elapsed;
  text[--at] = '\n';
  do {
    text[--at] = '0' + khz % 10;
    khz /= 10;
  } while (khz > 0);
  call(WRITE, 1L, text + at, (long)(sizeof text - at));
  return 0;
}
