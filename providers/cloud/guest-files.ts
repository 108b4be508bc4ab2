/** What an image has besides its packages and the program: it makes the VM ready and keeps the guest running. */
import { GUEST_KEYS, KEY_FILES } from "./guest-keys.ts";

interface GuestFile {
  readonly path: string;
  readonly mode: number;
  readonly text: string;
}

/** Packages of the distribution (Debian's names), besides those that are essential. */
export const GUEST_PACKAGES: readonly string[] = [
  ...[
    "busybox",
    "ca-certificates",
    "conntrack",
    "containernetworking-plugins",
    "iproute2",
    "libseccomp2",
    "libstdc++6",
  ],
  ...["mount", "netcat-openbsd", "nftables", "procps", "runc"],
];

/** Where the program lies. */
export const GUEST_FOLDER = "/opt/vmlet";

/** How long a VM that is asked to go waits for its pod, which is told to leave meanwhile. */
export const LEAVE_SECONDS = 120;

/** Where a VM has the volumes that it was ordered with, each by its name. */
export const GUEST_VOLUMES = "/var/lib/vmlet-volumes";

const GUEST_SOCKET = "/run/vmlet/guest.sock";
const PATH = "export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/** Before the names of files with keys, which an instance of Incus reads from its own configuration. */
export const KEY_FILE = "user.vmlet-file.";

/** What a guest is configured with unless its image is made with another. */
export const GUEST_CONFIG = `apiVersion: vmlet.dev/v1
kind: BackendConfig
listen: { socket: ${GUEST_SOCKET} }
stateDir: /var/lib/vmlet
engine:
  type: cri
  # Nobody outside sees it: the machine is reached at the VM's address.
  network: { cidr: 100.127.255.0/24 }
`;

/** @param main the main file of the guest's program @param config the guest's */
export function guestFiles(main: string, config = GUEST_CONFIG): GuestFile[] {
  const script = (path: string, text: string): GuestFile => ({ path, mode: 0o755, text: `#!/bin/busybox sh\n${text}` });
  const file = (path: string, text: string): GuestFile => ({ path, mode: 0o644, text });
  return [
    script("/sbin/init", "exec /bin/busybox init\n"),
    file(
      "/etc/inittab",
      "::sysinit:/usr/lib/vmlet/boot\n::respawn:/usr/lib/vmlet/guest\n::shutdown:/usr/lib/vmlet/leave\n",
    ),
    script(
      "/usr/lib/vmlet/boot",
      `${PATH}
mountpoint -q /run || mount -t tmpfs -o mode=755,nosuid,nodev tmpfs /run
mountpoint -q /dev/shm || { mkdir -p /dev/shm; mount -t tmpfs -o mode=1777,nosuid,nodev tmpfs /dev/shm; }
mkdir -p -m 700 /run/vmlet
ip link set lo up
# What Incus has told this instance alone: keys, if its guest has any. Whoever would do without them is not reached.
for each in ${Object.values(KEY_FILES).join(" ")}; do
  n=0
  until reply=$(printf 'GET /1.0/config/${KEY_FILE}%s HTTP/1.0\\r\\nHost: incus\\r\\n\\r\\n' $each | nc -U /dev/incus/sock 2>/dev/null) &&
    [ -n "$reply" ] || [ ! -S /dev/incus/sock ] || [ $n -ge 50 ]; do sleep 0.1; n=$((n + 1)); done
  case "$reply" in "HTTP/1."?" 200 "*)
    (umask 077 && mkdir -p ${GUEST_KEYS} && echo "$reply" | tr -d '\\r' | sed '1,/^$/d' >${GUEST_KEYS}/$each) ;;
  # It has none: a start waits for no more answers.
  *) break ;;
  esac
done
# The guest's socket needs no network: it does not wait for the address.
busybox udhcpc -i eth0 -s /usr/lib/vmlet/address -q -n -t 20 -T 1 >/dev/null 2>&1 &
`,
    ),
    script(
      "/usr/lib/vmlet/address",
      `case "$1" in bound | renew)
  ip address replace "$ip/$mask" dev "$interface"
  [ -z "$router" ] || ip route replace default via "\${router%% *}"
  for each in $dns; do echo "nameserver $each"; done >/etc/resolv.conf ;;
esac
`,
    ),
    script(
      "/usr/lib/vmlet/guest",
      `${PATH}
# Kept short: it is for who looks into a VM that does not come up.
[ ! -f /var/log/vmlet.log ] || tail -c 1000000 /var/log/vmlet.log >/var/log/vmlet.log.1
exec ${GUEST_FOLDER}/bin/node ${main} --config /etc/vmlet/guest.yaml --keys ${GUEST_KEYS} >/var/log/vmlet.log 2>&1
`,
    ),
    // Who asks the VM to go, as a host that is emptied does, lets its pod leave first, or loses patience.
    script(
      "/usr/lib/vmlet/leave",
      `${PATH}
n=0
while pgrep containerd-shim >/dev/null && [ $n -lt ${LEAVE_SECONDS} ]; do sleep 1; n=$((n + 1)); done
`,
    ),
    // From its own streams to the guest's socket, and back. While the guest starts, a caller waits for it.
    script(
      "/usr/lib/vmlet/relay",
      `n=0
until [ -S ${GUEST_SOCKET} ] || [ $n -ge 160 ]; do sleep 0.05; n=$((n + 1)); done
exec /bin/nc -N -U ${GUEST_SOCKET}
`,
    ),
    file("/etc/vmlet/guest.yaml", config),
    file("/etc/hosts", "127.0.0.1\tlocalhost\n::1\tlocalhost\n"),
    file("/etc/hostname", "vmlet\n"),
    file("/etc/resolv.conf", ""),
  ];
}
