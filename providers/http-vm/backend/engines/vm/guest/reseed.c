/*
 * reseed < SEED: gives the kernel the host's random bytes, as such, and makes its generator draw on them at once. Writing
 * them to /dev/urandom alone leaves the generators of two copies of one template alike.
 */
#include "linux.h"

enum { RNDADDENTROPY = 0x40085203, RNDRESEEDCRNG = 0x5207 };

int main(void) {
  struct {
    int bits;
    int bytes;
    u8 seed[64];
  } pool;
  long random = call(OPEN, "/dev/urandom", (long)O_WRONLY, 0L);
  pool.bytes = call(READ, 0L, pool.seed, (long)sizeof pool.seed);
  pool.bits = 8 * pool.bytes;
  return pool.bytes != sizeof pool.seed || call(IOCTL, random, (long)RNDADDENTROPY, &pool) < 0 ||
         call(IOCTL, random, (long)RNDRESEEDCRNG) < 0;
}
