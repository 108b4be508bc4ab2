/* clock MILLISECONDS: sets the clock to so long after 1970. */
#include "linux.h"

int main(int argc, char **argv) {
  struct timespec time;
  long milliseconds = 0;
  const char *at;
  if (argc != 2) return 2;
  for (at = argv[1]; *at >= '0' && *at <= '9'; at++) milliseconds = milliseconds * 10 + *at - '0';
  time.seconds = milliseconds / 1000;
  time.nanoseconds = milliseconds % 1000 * 1000000;
  return call(CLOCK_SETTIME, 0L, &time) < 0;
}
