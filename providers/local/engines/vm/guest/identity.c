/*
 * identity MAC ADDRESS NETMASK GATEWAY < SEED: what two copies of one template must not share. The kernel gets the host's
 * random bytes, as such, and draws on them at once (writing them to /dev/urandom alone would leave the generators alike);
 * eth0 gets its addresses, and the default route.
 */
#include "linux.h"

enum { RNDADDENTROPY = 0x40085203, RNDRESEEDCRNG = 0x5207 };
enum { SIOCADDRT = 0x890b, SIOCSIFFLAGS = 0x8914, SIOCSIFADDR = 0x8916, SIOCSIFNETMASK = 0x891c, SIOCSIFHWADDR = 0x8924 };
enum { AF_INET = 2, SOCK_DGRAM = 2, ARPHRD_ETHER = 1, IFF_UP = 1, IFF_RUNNING = 0x40, RTF_UP = 1, RTF_GATEWAY = 2 };

/* struct sockaddr, struct ifreq and struct rtentry of linux/if.h and linux/route.h. */
struct address {
  u16 family;
  u8 data[14];
};
struct request {
  char name[16];
  struct address address;
  u64 rest;
};
struct route {
  u64 unused;
  struct address destination, gateway, netmask;
  u16 flags;
  u8 rest[62];
};

static long sockets;

/* Decimal parts between dots, or hexadecimal ones between colons. */
static void parse(const char *text, u8 *to, int base) {
  int value = 0;
  for (;; text++) {
    if (*text >= '0' && *text <= '9') value = value * base + *text - '0';
    else if (*text >= 'a' && *text <= 'f') value = value * base + *text - 'a' + 10;
    else {
      *to++ = value;
      value = 0;
      if (*text == 0) return;
    }
  }
}

static void inet(struct address *address, const char *text) {
  clear(address, sizeof *address);
  address->family = AF_INET;
  parse(text, address->data + 2, 10);
}

static int set(long what, struct request *request) {
  request->name[0] = 'e';
  request->name[1] = 't';
  request->name[2] = 'h';
  request->name[3] = '0';
  return call(IOCTL, sockets, what, request) < 0;
}

static int reseed(void) {
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

int main(int argc, char **argv) {
  struct request request;
  struct route route;
  if (argc != 5) return 2;
  if (reseed()) return 3;
  sockets = call(SOCKET, (long)AF_INET, (long)SOCK_DGRAM, 0L);
  clear(&request, sizeof request);
  request.address.family = ARPHRD_ETHER;
  parse(argv[1], request.address.data, 16);
  if (set(SIOCSIFHWADDR, &request)) return 4;
  inet(&request.address, argv[2]);
  if (set(SIOCSIFADDR, &request)) return 5;
  inet(&request.address, argv[3]);
  if (set(SIOCSIFNETMASK, &request)) return 6;
  clear(&request, sizeof request);
  *(u16 *)&request.address = IFF_UP | IFF_RUNNING;
  if (set(SIOCSIFFLAGS, &request)) return 7;
  clear(&route, sizeof route);
  inet(&route.destination, "0.0.0.0");
  inet(&route.netmask, "0.0.0.0");
  inet(&route.gateway, argv[4]);
  route.flags = RTF_UP | RTF_GATEWAY;
  return call(IOCTL, sockets, (long)SIOCADDRT, &route) < 0 ? 8 : 0;
}
