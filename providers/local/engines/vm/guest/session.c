/*
 * session PORT TOKEN FLAGS SIGN CONSOLE PROGRAM ARGUMENT...
 *
 * Runs a program and carries its streams over a virtio port, to and from the host (session.ts, which describes the frames).
 * PORT     device of the port; it may be about to appear, or about to be given up by its last user
 * TOKEN    what the host says first, and hears first: anything else is left from the port's last user
 * FLAGS    i: the program has a standard input
 *          x: it ends with the host's connection; SIGN is then the file with its process id
 *          d: there is no program but a port of the loopback, PROGRAM, to be connected to
 * SIGN     a fifo: a byte in it says that the container runs; or - for none
 * CONSOLE  socket on which the runtime sends the container's terminal; or - for none
 */
#include "linux.h"

enum { FROM_STDIN = 1, FROM_STDIN_END = 2, FROM_RESIZE = 3, FROM_TAKEN = 4 };
enum { TO_STARTED = 1, TO_TAKEN = 2, TO_EXIT = 3, TO_STDOUT = 4, TO_STDERR = 5 };
enum { HEADER = 5, TOKEN_BYTES = 32, WINDOW = 65536, PIECE = 32768 };
/* Frames before it looks at what else there is; milliseconds that a command waits for its host. */
enum { FRAMES = 8, PATIENCE = 5000 };
/* How often it looks again whether the host is there; milliseconds between two looks. */
enum { LOOKS = 100, LOOK_PAUSE = 10 };
enum { AF_UNIX = 1, AF_INET = 2, AF_INET6 = 10, SOCK_STREAM = 1, SHUT_WR = 1 };
enum { F_SETFL = 4, TIOCSWINSZ = 0x5414, CONNECT_TIMEOUT = 110 };

static int port = -1;
static int ends_with_host;
static int has_stdin;
static int is_dial;
static const char *sign;
static const char *console;

/* What the program reads, and what it writes. On a terminal and on a connection all are one. */
static int in_fd = -1;
static int out_fd = -1;
static int err_fd = -1;
static int sign_fd = -1;
static int console_fd = -1; /* the socket, then the connection on which the terminal comes */
static int signal_fd = -1;
static int child;

/* From the host, not yet written to the program. The host sends no more than WINDOW before it is told of room. */
static u8 input[WINDOW];
static int input_from, input_to, input_over;
static int input_useless; /* the program reads no more */
static u32 taken;

/* The frame under way from the host. */
static u8 header[HEADER];
static u8 body[4];
static int header_bytes, body_bytes, body_left;

/* The frame under way to the host. */
static u8 output[HEADER + PIECE];
static int output_from, output_to;

static int has_started, started_told;
static int has_exited, exit_told, exit_code;
static int out_over, out_told, err_over, err_told;
static int err_turn;
/* Output that the host has not taken yet; what was sent since the program ended. */
static int untaken, after_exit;
static u16 columns, rows;

static void leave(int code) {
  call(EXIT, (long)code);
}

static void pause_for(long milliseconds) {
  struct timespec time;
  time.seconds = 0;
  time.nanoseconds = milliseconds * 1000000;
  call(NANOSLEEP, &time, 0L);
}

/* When memory is short, the kernel may choose the program, not what tells the host of it. */
static void may_be_chosen(const char *score) {
  long bytes = 0, fd = call(OPEN, "/proc/self/oom_score_adj", (long)(O_WRONLY | O_CLOEXEC), 0L);
  while (score[bytes]) bytes++;
  call(WRITE, fd, score, bytes);
  call(CLOSE, fd);
}

static int is_none(const char *argument) {
  return argument[0] == '-' && argument[1] == 0;
}

static int number(const char *text) {
  int value = 0;
  while (*text >= '0' && *text <= '9') value = value * 10 + *text++ - '0';
  return value;
}

static void copy(u8 *to, const u8 *from, int bytes) {
  while (bytes-- > 0) *to++ = *from++;
}

static void shut(int *fd) {
  if (*fd >= 0) call(CLOSE, (long)*fd);
  *fd = -1;
}

static void unblock(int fd) {
  call(FCNTL, (long)fd, (long)F_SETFL, (long)O_NONBLOCK);
}

static void watch(struct pollfd *entry, int fd, int events) {
  entry->fd = fd;
  entry->events = events;
  entry->revents = 0;
}

/*
 * The kernel says that nobody is at the other end. What the host sends overtakes the news that it has come, or that the
 * port's last user has gone: these wait for a kernel thread, which may be late. So it must be true for a while.
 */
static int is_forsaken(void) {
  struct pollfd on;
  int looks;
  for (looks = 0; looks < LOOKS; looks++) {
    watch(&on, port, 0);
    call(POLL, &on, 1L, 0L);
    if (!(on.revents & POLLHUP)) return 0;
    pause_for(LOOK_PAUSE);
  }
  return 1;
}

/* The host went away: what was started for it alone ends, anything else is the host's to find again. */
static void forsaken(void) {
  char text[16];
  long bytes, fd;
  if (ends_with_host && !has_exited) {
    fd = call(OPEN, sign, (long)O_RDONLY, 0L);
    bytes = fd < 0 ? 0 : call(READ, fd, text, 15L);
    if (bytes > 0) {
      text[bytes] = 0;
      if (number(text) > 1) {
        call(KILL, -(long)number(text), (long)SIGKILL);
        call(KILL, (long)number(text), (long)SIGKILL);
      }
    }
  }
  if (child > 0 && !has_exited && (ends_with_host || !has_started)) call(KILL, (long)child, (long)SIGKILL);
  leave(1);
}

/* Waits for the port, and for the host's token on it. */
static void greet(const char *device, const char *token) {
  long got;
  int waited = 0, matched = 0, i;
  u8 seen[TOKEN_BYTES];
  clear(seen, TOKEN_BYTES);
  while (port < 0) {
    got = call(OPEN, device, (long)(O_RDWR | O_NONBLOCK | O_CLOEXEC), 0L);
    if (got >= 0) port = got;
    else {
      if (ends_with_host && waited > PATIENCE) leave(1);
      pause_for(2);
      waited += 2;
    }
  }
  waited = 0;
  while (!matched) {
    got = call(READ, (long)port, output, (long)1);
    if (got == -EAGAIN) {
      struct pollfd wait;
      if (ends_with_host && waited > PATIENCE) leave(1);
      wait.fd = port;
      wait.events = POLLIN;
      if (call(POLL, &wait, 1L, 1000L) == 0) waited += 1000;
      continue;
    }
    if (got <= 0) {
      /* Nobody is at the other end. A command of which the host has gone away is not wanted any more. */
      if (ends_with_host && waited > PATIENCE) leave(1);
      pause_for(waited < PATIENCE ? 2 : 50);
      waited += 2;
      continue;
    }
    copy(seen, seen + 1, TOKEN_BYTES - 1);
    seen[TOKEN_BYTES - 1] = output[0];
    matched = 1;
    for (i = 0; i < TOKEN_BYTES; i++)
      if (seen[i] != (u8)token[i]) matched = 0;
  }
  copy(output, (const u8 *)token, TOKEN_BYTES);
  output_to = TOKEN_BYTES;
}

static void frame(int type, int bytes) {
  output[0] = type;
  output[1] = bytes >> 24;
  output[2] = bytes >> 16;
  output[3] = bytes >> 8;
  output[4] = bytes;
  output_from = 0;
  output_to = HEADER + bytes;
}

/* What the program wrote becomes the next frame. */
static int take(int *fd, int type, int *over) {
  long got;
  long most = WINDOW - untaken < PIECE ? WINDOW - untaken : PIECE;
  if (*fd < 0 || most <= 0) return 0;
  got = call(READ, (long)*fd, output + HEADER, most);
  if (got > 0) {
    frame(type, got);
    untaken += got;
    if (has_exited) after_exit += got;
    return 1;
  }
  if (got == -EAGAIN || got == -EINTR) return 0;
  /* A terminal that nobody has open any more gives an error. */
  *over = 1;
  if (fd == &out_fd && in_fd == out_fd) *fd = -1;
  else shut(fd);
  return 0;
}

/* The next frame to the host, most urgent first. */
static int next_frame(void) {
  if (has_started && !started_told) {
    started_told = 1;
    frame(TO_STARTED, 0);
    return 1;
  }
  if (taken > 0) {
    output[HEADER] = taken >> 24;
    output[HEADER + 1] = taken >> 16;
    output[HEADER + 2] = taken >> 8;
    output[HEADER + 3] = taken;
    taken = 0;
    frame(TO_TAKEN, 4);
    return 1;
  }
  /* What the pipes held when the program ended comes before the news of it; what others still write need not. */
  if (!has_exited || exit_told || after_exit < 2 * WINDOW) {
    err_turn = !err_turn;
    if (err_turn && take(&err_fd, TO_STDERR, &err_over)) return 1;
    if (take(&out_fd, TO_STDOUT, &out_over)) return 1;
    if (!err_turn && take(&err_fd, TO_STDERR, &err_over)) return 1;
  }
  if (has_exited && !exit_told) {
    exit_told = 1;
    output[HEADER] = exit_code;
    frame(TO_EXIT, 1);
    return 1;
  }
  if (out_over && !out_told) {
    out_told = 1;
    frame(TO_STDOUT, 0);
    return 1;
  }
  if (err_over && !err_told) {
    err_told = 1;
    frame(TO_STDERR, 0);
    return 1;
  }
  return 0;
}

/* Whether there may be more. */
static int to_host(void) {
  long put;
  int frames = 0;
  for (;;) {
    if (output_from == output_to && (++frames > FRAMES || !next_frame())) return frames > FRAMES;
    put = call(WRITE, (long)port, output + output_from, (long)(output_to - output_from));
    if (put == -EAGAIN || put == -EINTR) return 0;
    if (put == -ENOMEM) {
      pause_for(10);
      return 1;
    }
    if (put <= 0) forsaken();
    output_from += put;
  }
}

static void resize(void) {
  u16 size[4];
  if (columns == 0 || console_fd >= 0 || in_fd < 0 || err_fd == in_fd) return;
  size[0] = rows;
  size[1] = columns;
  size[2] = size[3] = 0;
  call(IOCTL, (long)in_fd, (long)TIOCSWINSZ, size);
}

static void end_input(void) {
  if (input_over != 1 || input_from != input_to || in_fd < 0 || input_useless) return;
  input_over = 2;
  if (is_dial) call(SHUTDOWN, (long)in_fd, (long)SHUT_WR);
  /* On a terminal the end of input is a character. */
  else if (in_fd == out_fd) call(WRITE, (long)in_fd, "\004", 1L);
  else shut(&in_fd);
}

static void to_program(void) {
  long put;
  while (input_from < input_to && in_fd >= 0) {
    put = call(WRITE, (long)in_fd, input + input_from, (long)(input_to - input_from));
    if (put == -EAGAIN || put == -EINTR) return;
    if (put <= 0) {
      input_useless = 1;
      break;
    }
    input_from += put;
    taken += put;
  }
  if (input_useless) {
    if (in_fd != out_fd) shut(&in_fd);
    taken += input_to - input_from;
    input_from = input_to;
  }
  if (input_from == input_to) input_from = input_to = 0;
  end_input();
}

static void received(int type) {
  if (type == FROM_STDIN_END && !input_over) input_over = 1;
  if (type == FROM_RESIZE) {
    columns = body[0] << 8 | body[1];
    rows = body[2] << 8 | body[3];
    resize();
  }
  if (type == FROM_TAKEN) {
    untaken -= body[0] << 24 | body[1] << 16 | body[2] << 8 | body[3];
    if (untaken < 0) leave(1);
  }
}

static void from_host(void) {
  static u8 bytes[4096];
  int type, count, i = 0;
  long got = call(READ, (long)port, bytes, 4096L);
  if (got == -EAGAIN || got == -EINTR) return;
  /* Zero when nobody is there: the main loop sees to that. */
  if (got < 0) forsaken();
  while (i < got) {
    if (header_bytes < HEADER) {
      header[header_bytes++] = bytes[i++];
      if (header_bytes < HEADER) continue;
      body_left = header[1] << 24 | header[2] << 16 | header[3] << 8 | header[4];
      body_bytes = 0;
      if (body_left < 0 || body_left > WINDOW) leave(1);
    }
    type = header[0];
    if (type == FROM_STDIN) {
      count = got - i < body_left ? got - i : body_left;
      if (input_from > 0 && input_to + count > WINDOW) {
        copy(input, input + input_from, input_to - input_from);
        input_to -= input_from;
        input_from = 0;
      }
      /* More than it was told of: no host of ours. */
      if (input_to + count > WINDOW) leave(1);
      copy(input + input_to, bytes + i, count);
      input_to += count;
      i += count;
      body_left -= count;
    } else
      for (; i < got && body_left > 0; i++, body_left--)
        if (body_bytes < 4) body[body_bytes++] = bytes[i];
    if (body_left > 0) return;
    header_bytes = 0;
    received(type);
  }
}

/* The runtime sends the terminal as a file descriptor. */
static void from_console(void) {
  struct {
    void *name;
    u64 name_bytes;
    void *vector;
    u64 vectors;
    void *control;
    u64 control_bytes;
    u64 flags;
  } message;
  struct {
    u8 *base;
    u64 bytes;
  } vector;
  u64 control[4];
  u8 ignored[256];
  long got;
  static int connected;
  if (!connected) {
    got = call(ACCEPT, (long)console_fd, 0L, 0L);
    if (got < 0) return;
    call(CLOSE, (long)console_fd);
    call(UNLINK, console);
    console_fd = got;
    connected = 1;
  }
  vector.base = ignored;
  vector.bytes = sizeof ignored;
  clear(&message, sizeof message);
  message.vector = &vector;
  message.vectors = 1;
  message.control = control;
  message.control_bytes = sizeof control;
  got = call(RECVMSG, (long)console_fd, &message, 0x40000040L); /* MSG_CMSG_CLOEXEC, MSG_DONTWAIT */
  if (got == -EAGAIN || got == -EINTR) return;
  shut(&console_fd);
  if (got > 0 && message.control_bytes >= 20) in_fd = out_fd = *(int *)(control + 2);
  if (out_fd < 0) {
    out_over = 1;
    return;
  }
  unblock(out_fd);
  resize();
}

static void check_sign(void) {
  u8 byte;
  if (sign_fd < 0 || call(READ, (long)sign_fd, &byte, 1L) != 1) return;
  has_started = 1;
  shut(&sign_fd);
}

static void reap(void) {
  u8 ignored[128];
  int status;
  call(READ, (long)signal_fd, ignored, 128L);
  if (has_exited || call(WAIT4, (long)child, &status, 1L, 0L) != child) return;
  check_sign();
  if (console_fd >= 0) from_console();
  if (console_fd >= 0) {
    shut(&console_fd);
    out_over = 1;
  }
  has_exited = 1;
  input_useless = 1;
  exit_code = status & 127 ? 128 + (status & 127) : status >> 8 & 255;
}

static void address(u8 *at, const char *path) {
  int i;
  clear(at, 110);
  at[0] = AF_UNIX;
  for (i = 0; path[i] && i < 107; i++) at[2 + i] = path[i];
}

static void listen_for_console(const char *path) {
  u8 at[110];
  address(at, path);
  console_fd = call(SOCKET, (long)AF_UNIX, (long)(SOCK_STREAM | O_CLOEXEC | O_NONBLOCK), 0L);
  call(BIND, (long)console_fd, at, 110L);
  call(LISTEN, (long)console_fd, 1L);
}

static void run(char **argv, char **envp, int on_terminal) {
  int in[2], out[2], err[2];
  u64 signals = 0;
  long null = call(OPEN, "/dev/null", (long)(O_RDWR | O_CLOEXEC), 0L);
  in[0] = out[1] = null;
  in[1] = out[0] = -1;
  if (has_stdin && !on_terminal) call(PIPE2, in, (long)O_CLOEXEC);
  if (!on_terminal) call(PIPE2, out, (long)O_CLOEXEC);
  call(PIPE2, err, (long)O_CLOEXEC);
  child = call(FORK);
  if (child < 0) {
    has_exited = 1;
    exit_code = 126;
  }
  if (child == 0) {
    may_be_chosen("0");
    call(RT_SIGPROCMASK, 2L, &signals, 0L, 8L);
    call(SETSID);
    call(DUP3, (long)in[0], 0L, 0L);
    call(DUP3, (long)out[1], 1L, 0L);
    call(DUP3, (long)err[1], 2L, 0L);
    call(EXECVE, argv[0], argv, envp);
    leave(127);
  }
  if (in[0] != null) call(CLOSE, (long)in[0]);
  if (out[1] != null) call(CLOSE, (long)out[1]);
  call(CLOSE, (long)err[1]);
  call(CLOSE, null);
  in_fd = in[1];
  out_fd = out[0];
  err_fd = err[0];
  if (in_fd >= 0) unblock(in_fd);
  else if (!on_terminal) input_useless = 1;
  if (out_fd >= 0) unblock(out_fd);
  unblock(err_fd);
}

static void dial(const char *text) {
  u8 at[28];
  int to = number(text);
  long failed;
  err_over = 1;
  clear(at, sizeof at);
  at[0] = AF_INET;
  at[2] = to >> 8;
  at[3] = to;
  at[4] = 127;
  at[7] = 1;
  in_fd = call(SOCKET, (long)AF_INET, (long)(SOCK_STREAM | O_CLOEXEC), 0L);
  failed = call(CONNECT, (long)in_fd, at, 16L);
  if (failed) {
    /* The rest of an IPv6 address that ends in 1. */
    shut(&in_fd);
    clear(at, sizeof at);
    at[0] = AF_INET6;
    at[2] = to >> 8;
    at[3] = to;
    at[23] = 1;
    in_fd = call(SOCKET, (long)AF_INET6, (long)(SOCK_STREAM | O_CLOEXEC), 0L);
    failed = call(CONNECT, (long)in_fd, at, 28L);
  }
  if (failed) {
    has_exited = 1;
    exit_code = 1;
    shut(&in_fd);
    out_over = 1;
    input_useless = 1;
    return;
  }
  has_started = 1;
  out_fd = in_fd;
  unblock(in_fd);
}

int main(int argc, char **argv, char **envp) {
  enum { HOST, IN, OUT, ERR, SIGN, CONSOLE, CHILD, WATCHED };
  struct pollfd on[WATCHED];
  u64 signals = 1L << (SIGCHLD - 1);
  struct {
    u64 handler, flags, restorer, mask;
  } ignore;
  const char *flag;
  int busy, more, input_done;
  if (argc < 7) return 2;
  may_be_chosen("-1000");
  for (flag = argv[3]; *flag; flag++) {
    if (*flag == 'i') has_stdin = 1;
    if (*flag == 'x') ends_with_host = 1;
    if (*flag == 'd') is_dial = 1;
  }
  sign = argv[4];
  console = argv[5];
  clear(&ignore, sizeof ignore);
  ignore.handler = 1;
  call(RT_SIGACTION, (long)SIGPIPE, &ignore, 0L, 8L);
  greet(argv[1], argv[2]);
  if (is_dial) dial(argv[6]);
  else {
    call(RT_SIGPROCMASK, 0L, &signals, 0L, 8L);
    signal_fd = call(SIGNALFD4, -1L, &signals, 8L, (long)(O_NONBLOCK | O_CLOEXEC));
    if (!ends_with_host && !is_none(sign)) sign_fd = call(OPEN, sign, (long)(O_RDWR | O_NONBLOCK | O_CLOEXEC), 0L);
    if (!is_none(console)) listen_for_console(console);
    run(argv + 6, envp, !is_none(console));
  }
  for (;;) {
    to_program();
    input_done = input_useless || input_over == 2;
    /* A connection ends when both sides have. */
    if (is_dial && out_over && input_done) has_exited = 1;
    more = to_host();
    busy = output_from < output_to;
    watch(on + HOST, port, POLLIN | (busy ? POLLOUT : 0));
    watch(on + IN, input_from < input_to ? in_fd : -1, POLLOUT);
    watch(on + OUT, busy || untaken >= WINDOW ? -1 : out_fd, POLLIN);
    watch(on + ERR, busy || untaken >= WINDOW ? -1 : err_fd, POLLIN);
    watch(on + SIGN, sign_fd, POLLIN);
    watch(on + CONSOLE, console_fd, POLLIN);
    watch(on + CHILD, signal_fd, POLLIN);
    if (!busy && exit_told && out_told && err_told) {
      /* The host has all of it once it takes more. */
      watch(on, port, POLLOUT);
      call(POLL, on, 1L, -1L);
      break;
    }
    if (call(POLL, on, (long)WATCHED, more ? 0L : -1L) < 0) continue;
    if (on[HOST].revents & POLLHUP && is_forsaken()) forsaken();
    if (on[HOST].revents & POLLIN) from_host();
    if (on[SIGN].revents) check_sign();
    if (on[CONSOLE].revents) from_console();
    if (on[CHILD].revents) reap();
  }
  return 0;
}
