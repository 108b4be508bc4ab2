/*
 * Loaded into a QEMU whose memory is a copy of a template: it opens the template's for writing, also when all that it writes stays
 * its own (before 8.2 there is no other way). In its jail the file cannot be written to, and so it is opened for reading.
 */
#include "../guest/linux.h"

enum { EACCES = 13, EROFS = 30, O_ACCMODE = 3 };

int *__errno_location(void);

static int open_as_allowed(const char *path, int flags, int mode) {
  long fd = call(OPEN, path, (long)flags, (long)mode);
  if ((fd == -EACCES || fd == -EROFS) && (flags & O_ACCMODE) == O_RDWR)
    fd = call(OPEN, path, (long)(flags & ~O_ACCMODE), (long)mode);
  if (fd >= 0) return fd;
  *__errno_location() = -fd;
  return -1;
}

int open(const char *path, int flags, int mode) { return open_as_allowed(path, flags, mode); }
int open64(const char *path, int flags, int mode) { return open_as_allowed(path, flags, mode); }
int __open_2(const char *path, int flags) { return open_as_allowed(path, flags, 0); }
int __open64_2(const char *path, int flags) { return open_as_allowed(path, flags, 0); }
