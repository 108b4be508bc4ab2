/*
 * jail: starts a program (QEMU) as a user of its own, with a root, processes, network and IPC of its own, and without privileges.
 * What it may use is opened here, by the host's root, and given to it as descriptors. Stays as its parent: keeps what it
 * complains of short, and ends with its exit code.
 *
 *     jail OPTION... -- PROGRAM ARGUMENT...
 *
 *     uid NUMBER        user and group of the program
 *     root FOLDER       an empty one, over which its root is made
 *     file-size BYTES   no file gets longer by it
 *     enter FILE        cgroup.procs of a control group that it is in from its beginning
 *     see PATH          file or folder that it has at the same place, read-only
 *     change PATH       a file that it may write to
 *     device PATH       a device that is its user's
 *     read FD FILE, write FD FILE, listen FD SOCKET, tap FD NAME   descriptors that it begins with
 *     env NAME=VALUE    its environment: nothing else is in it
 *
 * Prints the program's process id, as the host has it.
 */
#include "../guest/linux.h"

enum {
  FCHMOD = 91,
  MKDIR = 83,
  FTRUNCATE = 77,
  CHDIR = 80,
  UMASK = 95,
  STAT = 4,
  CHOWN = 92,
  SETGROUPS = 116,
  SETRESUID = 117,
  SETRESGID = 119,
  MKNOD = 133,
  PIVOT_ROOT = 155,
  PRCTL = 157,
  SETRLIMIT = 160,
  MOUNT = 165,
  UMOUNT2 = 166,
  UNSHARE = 272
};
enum { PR_SET_SECCOMP = 22, PR_CAPBSET_DROP = 24, PR_SET_NO_NEW_PRIVS = 38, SECCOMP_MODE_FILTER = 2 };
enum { RLIMIT_FSIZE = 1, RLIMIT_CORE = 4, RLIMIT_NOFILE = 7, OPEN_FILES = 1024 };
enum { MS_RDONLY = 1, MS_NOSUID = 2, MS_NODEV = 4, MS_REMOUNT = 32, MS_BIND = 4096, MS_REC = 16384, MS_PRIVATE = 1 << 18 };
enum { MNT_DETACH = 2 };
enum {
  CLONE_NEWNS = 0x20000,
  CLONE_NEWCGROUP = 0x2000000,
  CLONE_NEWUTS = 0x4000000,
  CLONE_NEWIPC = 0x8000000,
  CLONE_NEWPID = 0x20000000,
  CLONE_NEWNET = 0x40000000
};
enum { O_CREAT = 0100, S_IFMT = 0170000, S_IFDIR = 0040000, S_IFCHR = 0020000 };
enum { AF_UNIX = 1, SOCK_STREAM = 1, BACKLOG = 16, ADDRESS_BYTES = 110 };
enum { TUNSETIFF = 0x400454ca, IFF_TAP = 2, IFF_NO_PI = 0x1000, IFF_VNET_HDR = 0x4000 };
enum { MAX_PATH = 4096, MAX_ENV = 8, EEXIST = 17, EINVAL = 22, LOG_BYTES = 1 << 20 };

/* As stat(2) fills it in. */
struct stat {
  u64 dev, ino, nlink;
  u32 mode, uid, gid, pad;
  u64 rdev;
  u64 rest[12];
};

static long uid;
static const char *root;

static int length(const char *text) {
  int count = 0;
  while (text[count]) count++;
  return count;
}

static int same(const char *a, const char *b) {
  while (*a && *a == *b) a++, b++;
  return *a == *b;
}

static long number(const char *text) {
  long value = 0;
  while (*text >= '0' && *text <= '9') value = value * 10 + *text++ - '0';
  return value;
}

static int digits(char *end, long value) {
  int count = 0;
  do {
    *--end = '0' + value % 10;
    value /= 10;
    count++;
  } while (value > 0);
  return count;
}

static void say(const char *text) { call(WRITE, 2L, text, (long)length(text)); }

static void fail(const char *what, const char *on, long error) {
  char text[24];
  int count = digits(text + sizeof text, -error);
  say("jail: ");
  say(what);
  say(" ");
  say(on);
  say(": error ");
  call(WRITE, 2L, text + sizeof text - count, (long)count);
  say("\n");
  call(EXIT, 125L);
}

static long must(long result, const char *what, const char *on) {
  if (result < 0) fail(what, on, result);
  return result;
}

static void append(char *path, const char *text) {
  int at = length(path), i = 0;
  while (text[i]) {
    if (at + 1 >= MAX_PATH) fail("too long a path", text, 0);
    path[at++] = text[i++];
  }
  path[at] = 0;
}

/* The descriptor that the program will know as this number. */
static void give(const char *as, long fd) {
  must(call(DUP3, fd, number(as), 0L), "dup", as);
  call(CLOSE, fd);
}

static void open_for(const char *as, const char *path, long flags) {
  give(as, must(call(OPEN, path, flags, 0L), "open", path));
}

/* Of the host's root: nobody but the backend connects. */
static void listen_for(const char *as, const char *path) {
  u8 address[ADDRESS_BYTES];
  int i;
  long fd = must(call(SOCKET, (long)AF_UNIX, (long)SOCK_STREAM, 0L), "socket", path);
  clear(address, ADDRESS_BYTES);
  address[0] = AF_UNIX;
  if (length(path) > ADDRESS_BYTES - 3) fail("too long a path", path, 0);
  call(UNLINK, path);
  for (i = 0; path[i]; i++) address[2 + i] = path[i];
  must(call(BIND, fd, address, (long)ADDRESS_BYTES), "bind", path);
  must(call(LISTEN, fd, (long)BACKLOG), "listen", path);
  give(as, fd);
}

static void tap_for(const char *as, const char *name) {
  u8 request[40];
  int i, flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR;
  long fd = must(call(OPEN, "/dev/net/tun", (long)(O_RDWR | O_NONBLOCK), 0L), "open", "/dev/net/tun");
  clear(request, sizeof request);
  for (i = 0; name[i] && i < 15; i++) request[i] = name[i];
  request[16] = flags & 255;
  request[17] = flags >> 8;
  must(call(IOCTL, fd, (long)TUNSETIFF, request), "take the tap", name);
  give(as, fd);
}

static void enter(const char *file) {
  long fd = must(call(OPEN, file, (long)O_WRONLY, 0L), "open", file);
  must(call(WRITE, fd, "0", 1L), "enter", file);
  call(CLOSE, fd);
}

/* Folders on the way to a path below the new root; `path` itself when it is a folder. */
static void make_way(const char *path, int is_folder) {
  char at[MAX_PATH];
  int end, start = length(root), count;
  long made;
  at[0] = 0;
  append(at, root);
  append(at, path);
  count = length(at);
  for (end = start + 1; end <= count; end++) {
    if (at[end] != '/' && (at[end] != 0 || !is_folder)) continue;
    at[end] = 0;
    made = call(MKDIR, at, 0755L);
    if (made != -EEXIST) must(made, "make", at);
    if (end < count) at[end] = '/';
  }
  if (!is_folder) call(CLOSE, must(call(OPEN, at, (long)(O_WRONLY | O_CREAT | O_CLOEXEC), 0444L), "make", at));
}

static void show(const char *path, int is_writable) {
  char at[MAX_PATH];
  struct stat stat;
  must(call(STAT, path, &stat), "look at", path);
  make_way(path, (stat.mode & S_IFMT) == S_IFDIR);
  at[0] = 0;
  append(at, root);
  append(at, path);
  must(call(MOUNT, path, at, 0L, (long)MS_BIND, 0L), "mount", path);
  must(call(MOUNT, 0L, at, 0L, (long)(MS_BIND | MS_REMOUNT | MS_NOSUID | MS_NODEV | (is_writable ? 0 : MS_RDONLY)), 0L),
       "protect", path);
}

static void make_device(const char *path) {
  char at[MAX_PATH];
  struct stat stat;
  must(call(STAT, path, &stat), "look at", path);
  if ((stat.mode & S_IFMT) != S_IFCHR) fail("no character device:", path, 0);
  make_way(path, 0);
  at[0] = 0;
  append(at, root);
  append(at, path);
  must(call(UNLINK, at), "make", path);
  must(call(MKNOD, at, (long)(S_IFCHR | 0600), stat.rdev), "make", path);
  must(call(CHOWN, at, uid, uid), "give away", path);
}

static void limit(long what, u64 most) {
  u64 both[2];
  both[0] = both[1] = most;
  must(call(SETRLIMIT, what, both), "limit", "resources");
}

static void give_up_privileges(void) {
  long capability, dropped;
  for (capability = 0; capability < 64; capability++) {
    dropped = call(PRCTL, (long)PR_CAPBSET_DROP, capability, 0L, 0L, 0L);
    if (dropped == -EINVAL) break;
    must(dropped, "drop", "capabilities");
  }
  must(call(SETGROUPS, 0L, 0L), "leave", "groups");
  must(call(SETRESGID, uid, uid, uid), "become", "the group");
  must(call(SETRESUID, uid, uid, uid), "become", "the user");
  must(call(PRCTL, (long)PR_SET_NO_NEW_PRIVS, 1L, 0L, 0L, 0L), "refuse", "new privileges");
}

/*
 * System calls that no QEMU of ours makes, and that reach what namespaces and missing privileges may not keep closed: other
 * processes, mounts, namespaces, the kernel's less tried parts. io_uring because it does what is refused here. QEMU's own filter
 * (-sandbox) comes on top.
 */
static const u16 refused[] = {
  101, 310, 311, 312, 434, 438, /* ptrace, process_vm_readv, process_vm_writev, kcmp, pidfd_open, pidfd_getfd */
  272, 308, 165, 166, 155, 161, /* unshare, setns, mount, umount2, pivot_root, chroot */
  428, 429, 430, 431, 432, 433, 442, /* open_tree, move_mount, fsopen, fsconfig, fsmount, fspick, mount_setattr */
  133, 259, 303, 304, /* mknod, mknodat, name_to_handle_at, open_by_handle_at */
  248, 249, 250, /* add_key, request_key, keyctl */
  321, 298, 323, /* bpf, perf_event_open, userfaultfd */
  425, 426, 427, /* io_uring_setup, io_uring_enter, io_uring_register */
  175, 313, 176, 246, 320, 169, 103, 163, 179, 167, 168, /* modules, kexec, reboot, syslog, acct, quotactl, swapon, swapoff */
};
enum { SYSCALL_CLONE = 56, SYSCALL_CLONE3 = 435, NAMESPACES = 0x7e020000, X32 = 0x40000000 };
enum { AT_NUMBER = 0, AT_ARCH = 4, AT_FIRST_ARGUMENT = 16, ARCH_X86_64 = 0xc000003e };
enum { LOAD = 0x20, EQUAL = 0x15, AT_LEAST = 0x35, ANY_OF = 0x45, RETURN = 6 };
enum { ALLOW = 0x7fff0000, REFUSE = 0x50001, UNKNOWN = 0x50026, END_PROCESS = 0x80000000 };

struct instruction {
  u16 code;
  u8 then, otherwise;
  u32 value;
};
static struct instruction filter[128];
static int filter_length;

static void step(int code, u32 value, int then, int otherwise) {
  struct instruction *at = filter + filter_length++;
  at->code = code;
  at->value = value;
  at->then = then;
  at->otherwise = otherwise;
}

/* The next two steps are: refuse if so, or go on. */
static void refuse_if(int code, u32 value) {
  step(code, value, 0, 1);
  step(RETURN, REFUSE, 0, 0);
}

static void filter_system_calls(void) {
  struct {
    u16 length;
    u16 pad[3];
    struct instruction *filter;
  } program;
  int i;
  step(LOAD, AT_ARCH, 0, 0);
  step(EQUAL, ARCH_X86_64, 1, 0);
  step(RETURN, END_PROCESS, 0, 0);
  step(LOAD, AT_NUMBER, 0, 0);
  refuse_if(AT_LEAST, X32);
  for (i = 0; i < sizeof refused / sizeof refused[0]; i++) refuse_if(EQUAL, refused[i]);
  /* Its flags cannot be looked at; without it, threads are made by clone. */
  step(EQUAL, SYSCALL_CLONE3, 0, 1);
  step(RETURN, UNKNOWN, 0, 0);
  step(EQUAL, SYSCALL_CLONE, 0, 4);
  step(LOAD, AT_FIRST_ARGUMENT, 0, 0);
  refuse_if(ANY_OF, NAMESPACES);
  step(RETURN, ALLOW, 0, 0);
  /* Other families, such as vsock, know no network namespaces. */
  step(EQUAL, SOCKET, 0, 3);
  step(LOAD, AT_FIRST_ARGUMENT, 0, 0);
  step(EQUAL, AF_UNIX, 1, 0);
  step(RETURN, REFUSE, 0, 0);
  step(RETURN, ALLOW, 0, 0);
  program.length = filter_length;
  program.filter = filter;
  must(call(PRCTL, (long)PR_SET_SECCOMP, (long)SECCOMP_MODE_FILTER, &program, 0L, 0L), "filter", "system calls");
}

static int is_descriptor(const char *option) {
  return same(option, "read") || same(option, "write") || same(option, "listen") || same(option, "tap");
}

/* Options that are for the program's side alone. */
static void furnish(char **option) {
  for (; !same(option[0], "--"); option += is_descriptor(option[0]) ? 3 : 2) {
    if (same(option[0], "see")) show(option[1], 0);
    if (same(option[0], "change")) show(option[1], 1);
    if (same(option[0], "device")) make_device(option[1]);
  }
}

static void move_in(char **argv) {
  must(call(UNSHARE, (long)(CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP)), "leave", "namespaces");
  must(call(MOUNT, 0L, "/", 0L, (long)(MS_REC | MS_PRIVATE), 0L), "detach", "/");
  must(call(MOUNT, "jail", root, "tmpfs", (long)MS_NOSUID, "mode=755,size=64k,nr_inodes=1000"), "mount", root);
  make_device("/dev/null");
  make_device("/dev/urandom");
  furnish(argv);
  must(call(CHDIR, root), "enter", root);
  must(call(PIVOT_ROOT, ".", "."), "change", "the root");
  must(call(UMOUNT2, ".", (long)MNT_DETACH), "leave", "the old root");
  must(call(CHDIR, "/"), "enter", "/");
  must(call(MOUNT, 0L, "/", 0L, (long)(MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID), 0L), "protect", "/");
}

/* What the program prints goes to the log, of which the newest stays. */
static void keep_log(long from) {
  static char piece[4096];
  long got, written = 0;
  while ((got = call(READ, from, piece, (long)sizeof piece)) > 0 || got == -EINTR) {
    if (got < 0) continue;
    if (written + got > LOG_BYTES) {
      call(FTRUNCATE, 2L, 0L);
      written = 0;
    }
    call(WRITE, 2L, piece, got);
    written += got;
  }
}

int main(int argc, char **argv) {
  char *environment[MAX_ENV + 1];
  char text[24];
  int variables = 0, i, log[2], status = 0, count;
  u64 file_size = 0;
  long pid, null;
  char *first, *last;
  char **option = argv + 1, **program;
  call(UMASK, 022L);
  for (;; option += 2) {
    if (option - argv >= argc - 1) {
      say("usage: jail OPTION... -- PROGRAM ARGUMENT...\n");
      return 2;
    }
    if (same(option[0], "--")) break;
    if (same(option[0], "uid")) uid = number(option[1]);
    else if (same(option[0], "root")) root = option[1];
    else if (same(option[0], "file-size")) file_size = number(option[1]);
    else if (same(option[0], "enter")) enter(option[1]);
    else if (same(option[0], "env") && variables < MAX_ENV) environment[variables++] = option[1];
    else if (same(option[0], "see") || same(option[0], "change") || same(option[0], "device")) continue;
    else {
      if (same(option[0], "read")) open_for(option[1], option[2], O_RDONLY);
      else if (same(option[0], "write")) open_for(option[1], option[2], O_RDWR);
      else if (same(option[0], "listen")) listen_for(option[1], option[2]);
      else if (same(option[0], "tap")) tap_for(option[1], option[2]);
      else fail("unknown option", option[0], 0);
      option++;
    }
  }
  program = option + 1;
  environment[variables] = 0;
  if (uid <= 0 || root == 0) fail("needs", "uid and root", 0);
  must(call(PIPE2, log, (long)O_CLOEXEC), "make", "a pipe");
  must(call(UNSHARE, (long)CLONE_NEWPID), "leave", "processes");
  pid = must(call(FORK), "fork", program[0]);
  if (pid == 0) {
    call(DUP3, (long)log[1], 2L, 0L);
    call(SETSID);
    move_in(argv + 1);
    null = must(call(OPEN, "/dev/null", (long)(O_RDWR | O_CLOEXEC), 0L), "open", "/dev/null");
    call(DUP3, null, 0L, 0L);
    call(DUP3, null, 1L, 0L);
    limit(RLIMIT_CORE, 0);
    limit(RLIMIT_NOFILE, OPEN_FILES);
    if (file_size > 0) limit(RLIMIT_FSIZE, file_size);
    give_up_privileges();
    filter_system_calls();
    must(call(EXECVE, program[0], program, environment), "start", program[0]);
  }
  text[sizeof text - 1] = '\n';
  count = digits(text + sizeof text - 1, pid);
  call(WRITE, 1L, text + sizeof text - 1 - count, (long)count + 1);
  call(CLOSE, 1L);
  for (i = 3; i < OPEN_FILES; i++)
    if (i != log[0]) call(CLOSE, (long)i);
  /* Who looks for the program by its arguments finds the program alone. */
  first = argv[1];
  last = argv[argc - 1];
  clear(first, last + length(last) - first);
  give_up_privileges();
  keep_log(log[0]);
  while (call(WAIT4, pid, &status, 0L, 0L) == -EINTR) continue;
  return status & 127 ? 128 + (status & 127) : status >> 8 & 255;
}
