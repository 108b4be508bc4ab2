/* The little of Linux (x86-64) that the guest's own programs need: they are made without a C library. */

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long u64;

/* A system call; negative results are error numbers (start.s). */
long call(long number, ...);

enum {
  READ = 0,
  WRITE = 1,
  OPEN = 2,
  CLOSE = 3,
  POLL = 7,
  RT_SIGACTION = 13,
  RT_SIGPROCMASK = 14,
  IOCTL = 16,
  PAUSE = 34,
  NANOSLEEP = 35,
  SOCKET = 41,
  CONNECT = 42,
  ACCEPT = 43,
  RECVMSG = 47,
  SHUTDOWN = 48,
  BIND = 49,
  LISTEN = 50,
  FORK = 57,
  EXECVE = 59,
  EXIT = 60,
  WAIT4 = 61,
  KILL = 62,
  FCNTL = 72,
  UNLINK = 87,
  SETSID = 112,
  PERSONALITY = 135,
  IOPERM = 173,
  CLOCK_SETTIME = 227,
  CLOCK_GETTIME = 228,
  SIGNALFD4 = 289,
  DUP3 = 292,
  PIPE2 = 293
};

enum { O_RDONLY = 0, O_WRONLY = 1, O_RDWR = 2, O_NONBLOCK = 04000, O_CLOEXEC = 02000000 };
enum { EINTR = 4, EAGAIN = 11, ENOMEM = 12 };

struct pollfd {
  int fd;
  short events;
  short revents;
};
enum { POLLIN = 1, POLLOUT = 4, POLLHUP = 16 };

enum { SIGKILL = 9, SIGPIPE = 13, SIGCHLD = 17 };

struct timespec {
  long seconds;
  long nanoseconds;
};

static void clear(void *memory, int bytes) {
  u8 *at = memory;
  while (bytes-- > 0) *at++ = 0;
}
