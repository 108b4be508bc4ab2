/*
 * give: a connection to a program's socket, on stdin and stdout, by which the program is passed an open file: one that is in
 * a jail (jail.c) opens none by itself.
 *
 *     give SOCKET FILE read|write
 *
 * The file goes with the first bytes of stdin. Ends when either side does.
 */
#include "../guest/linux.h"

enum { SENDMSG = 46, AF_UNIX = 1, SOCK_STREAM = 1, SOL_SOCKET = 1, SCM_RIGHTS = 1, ADDRESS_BYTES = 110 };
enum { O_NOFOLLOW = 0400000 };

struct part {
  const void *at;
  u64 length;
};

struct message {
  void *name;
  u64 name_length;
  struct part *parts;
  u64 part_count;
  void *control;
  u64 control_length;
  u64 flags;
};

/* As the kernel wants it: a header, and one descriptor. */
struct rights {
  u64 length;
  u32 level, type;
  u32 fd, pad;
};

static int length(const char *text) {
  int count = 0;
  while (text[count]) count++;
  return count;
}

static int fail(const char *what, const char *on) {
  call(WRITE, 2L, "give: cannot ", 13L);
  call(WRITE, 2L, what, (long)length(what));
  call(WRITE, 2L, " ", 1L);
  call(WRITE, 2L, on, (long)length(on));
  call(WRITE, 2L, "\n", 1L);
  return 1;
}

static long connect_to(const char *path) {
  u8 address[ADDRESS_BYTES];
  int i;
  long fd = call(SOCKET, (long)AF_UNIX, (long)SOCK_STREAM, 0L), failed;
  if (fd < 0 || length(path) > ADDRESS_BYTES - 3) return -1;
  clear(address, ADDRESS_BYTES);
  address[0] = AF_UNIX;
  for (i = 0; path[i]; i++) address[2 + i] = path[i];
  do failed = call(CONNECT, fd, address, (long)ADDRESS_BYTES);
  while (failed == -EINTR);
  return failed < 0 ? -1 : fd;
}

static long send_with(long socket, const void *bytes, long count, long file) {
  struct part part;
  struct message message;
  struct rights rights;
  part.at = bytes;
  part.length = count;
  clear(&rights, sizeof rights);
  rights.length = 20;
  rights.level = SOL_SOCKET;
  rights.type = SCM_RIGHTS;
  rights.fd = file;
  clear(&message, sizeof message);
  message.parts = &part;
  message.part_count = 1;
  message.control = &rights;
  message.control_length = sizeof rights;
  return call(SENDMSG, socket, &message, 0L);
}

static int write_all(long fd, const char *bytes, long count) {
  while (count > 0) {
    long done = call(WRITE, fd, bytes, count);
    if (done == -EINTR) continue;
    if (done <= 0) return 0;
    bytes += done;
    count -= done;
  }
  return 1;
}

int main(int argc, char **argv) {
  static char bytes[65536];
  struct pollfd on[2];
  long file, socket, count, sent;
  int is_given = 0;
  if (argc != 4) return 2;
  file = call(OPEN, argv[2], (long)((argv[3][0] == 'w' ? O_RDWR : O_RDONLY) | O_CLOEXEC | O_NOFOLLOW), 0L);
  if (file < 0) return fail("open", argv[2]);
  socket = connect_to(argv[1]);
  if (socket < 0) return fail("connect to", argv[1]);
  on[0].fd = 0;
  on[1].fd = socket;
  for (;;) {
    on[0].events = on[1].events = POLLIN;
    on[0].revents = on[1].revents = 0;
    if (call(POLL, on, 2L, -1L) < 0) continue;
    if (on[1].revents) {
      count = call(READ, socket, bytes, (long)sizeof bytes);
      if (count <= 0 || !write_all(1, bytes, count)) return 0;
    }
    if (on[0].revents) {
      count = call(READ, 0L, bytes, (long)sizeof bytes);
      if (count <= 0) return 0;
      sent = 0;
      if (!is_given) {
        sent = send_with(socket, bytes, count, file);
        if (sent <= 0) return fail("pass on", argv[2]);
        is_given = 1;
      }
      if (!write_all(socket, bytes + sent, count - sent)) return 0;
    }
  }
}
