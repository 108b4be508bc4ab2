/*
 * identity MAC ADDRESS NETMASK [GATEWAY [ADDRESS6 GATEWAY6 GATEWAYMAC]] < SEED: what two copies of one template must not
 * share. The kernel gets the host's random bytes, as such, and draws on them at once (writing them to /dev/urandom alone
 * would leave the generators alike); eth0 gets its addresses, and the default routes. Of IPv6, each byte between colons.
 */
#include "linux.h"

enum { RNDADDENTROPY = 0x40085203, RNDRESEEDCRNG = 0x5207 };
enum { SIOCADDRT = 0x890b, SIOCSIFFLAGS = 0x8914, SIOCSIFADDR = 0x8916, SIOCSIFNETMASK = 0x891c, SIOCSIFHWADDR = 0x8924, SIOCGIFINDEX = 0x8933 };
enum { AF_INET = 2, AF_INET6 = 10, AF_NETLINK = 16, SOCK_DGRAM = 2, SOCK_RAW = 3 };
enum { ARPHRD_ETHER = 1, IFF_UP = 1, IFF_RUNNING = 0x40, RTF_UP = 1, RTF_GATEWAY = 2, RTF_HOST = 4 };
enum { RTM_NEWNEIGH = 28, NLM_F_REQUEST = 1, NLM_F_REPLACE = 0x100, NLM_F_CREATE = 0x400 };
enum { NUD_PERMANENT = 0x80, NDA_DST = 1, NDA_LLADDR = 2 };

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

/* struct in6_ifreq and struct in6_rtmsg of linux/ipv6.h and linux/ipv6_route.h. */
struct address6 {
  u8 address[16];
  u32 prefix;
  int link;
};
struct route6 {
  u8 destination[16], source[16], gateway[16];
  u32 type;
  u16 destination_prefix, source_prefix;
  u32 metric;
  u64 info;
  u32 flags;
  int link;
};

/* That GATEWAY6 has GATEWAYMAC, for ever: struct nlmsghdr, ndmsg and two rtattr of linux/rtnetlink.h. */
struct neighbour {
  u32 bytes;
  u16 type, flags;
  u32 sequence, port;
  u8 family, pad1;
  u16 pad2;
  int link;
  u16 state;
  u8 kind, pad3;
  u16 address_bytes, address_type;
  u8 address[16];
  u16 mac_bytes, mac_type;
  u8 mac[8];
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

static int give6(const char *address, const char *gateway, const char *mac) {
  struct request request;
  struct address6 own;
  struct route6 route;
  struct neighbour neighbour;
  long netlink = call(SOCKET, (long)AF_NETLINK, (long)SOCK_RAW, 0L);
  clear(&request, sizeof request);
  if (set(SIOCGIFINDEX, &request)) return 9;
  sockets = call(SOCKET, (long)AF_INET6, (long)SOCK_DGRAM, 0L);
  clear(&own, sizeof own);
  own.link = *(int *)&request.address;
  own.prefix = 128;
  parse(address, own.address, 16);
  if (call(IOCTL, sockets, (long)SIOCSIFADDR, &own) < 0) return 10;
  clear(&neighbour, sizeof neighbour);
  neighbour.bytes = sizeof neighbour;
  neighbour.type = RTM_NEWNEIGH;
  neighbour.flags = NLM_F_REQUEST | NLM_F_REPLACE | NLM_F_CREATE;
  neighbour.family = AF_INET6;
  neighbour.link = own.link;
  neighbour.state = NUD_PERMANENT;
  neighbour.address_bytes = 4 + sizeof neighbour.address;
  neighbour.address_type = NDA_DST;
  parse(gateway, neighbour.address, 16);
  neighbour.mac_bytes = 4 + 6;
  neighbour.mac_type = NDA_LLADDR;
  parse(mac, neighbour.mac, 16);
  if (call(WRITE, netlink, &neighbour, (long)sizeof neighbour) < 0) return 11;
  clear(&route, sizeof route);
  route.link = own.link;
  route.metric = 1024;
  route.flags = RTF_UP | RTF_HOST;
  route.destination_prefix = 128;
  parse(gateway, route.destination, 16);
  if (call(IOCTL, sockets, (long)SIOCADDRT, &route) < 0) return 12;
  clear(route.destination, sizeof route.destination);
  route.flags = RTF_UP | RTF_GATEWAY;
  route.destination_prefix = 0;
  parse(gateway, route.gateway, 16);
  return call(IOCTL, sockets, (long)SIOCADDRT, &route) < 0 ? 13 : 0;
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
  if (argc != 4 && argc != 5 && argc != 8) return 2;
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
  if (argc == 4) return 0;
  clear(&route, sizeof route);
  inet(&route.destination, "0.0.0.0");
  inet(&route.netmask, "0.0.0.0");
  inet(&route.gateway, argv[4]);
  route.flags = RTF_UP | RTF_GATEWAY;
  if (call(IOCTL, sockets, (long)SIOCADDRT, &route) < 0) return 8;
  return argc == 8 ? give6(argv[5], argv[6], argv[7]) : 0;
}
