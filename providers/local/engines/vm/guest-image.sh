#!/bin/bash
# Makes the guest of the engine vm from Debian packages: vmlinux (kernel, uncompressed, booted by its PVH note), base.cpio
# (initramfs: busybox, crun, e2fsck, kernel modules, guest/*), programs for the host (frequency, jail, give, read-only.so),
# packages (what it was made of), version (hash of the guest) and sums (hashes of all). Nothing is installed: packages are downloaded and
# unpacked, tcc too, which compiles *.c. The same packages and the same C library of this host give the same guest.
# Usage: guest-image.sh FOLDER
# Needs: apt-get, dpkg-deb, lz4, cpio, as, ld, nm and strip (binutils), ldd.
set -euo pipefail
out=$1
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$out"
# Modes are a part of it, whoever makes it.
umask 022
work=$(mktemp -d "$out/.build-XXXXXX")
trap 'rm -rf "$work"' EXIT
mkdir "$work/debs" "$work/pkg" "$work/root"

arch=$(dpkg --print-architecture)
meta=linux-image-cloud-$arch
kernel_package=$(apt-cache depends "$meta" | awk '/Depends:/ { print $2; exit }')
[ -n "$kernel_package" ] || { echo "no kernel package for $arch: run apt-get update" >&2; exit 1; }
# The download's own user could not read our folder; as ourselves it is no privilege lost.
(cd "$work/debs" && apt-get -qq -o APT::Sandbox::User=root download "$kernel_package" busybox-static crun \
  libyajl2 libcap2 libseccomp2 tcc e2fsprogs libext2fs2 libcom-err2 libblkid1 libuuid1)
for deb in "$work"/debs/*.deb; do
  dpkg-deb -x "$deb" "$work/pkg"
  dpkg-deb -W --showformat '${Package} ${Version}\n' "$deb" >> "$work/packages"
done
# A newer kernel is another package: this one says which.
LC_ALL=C apt-cache policy "$meta" | awk -v name="$meta" '/Candidate:/ { print name, $2 }' >> "$work/packages"

# The kernel: an LZ4 stream inside the boot image. lz4 complains about what follows it.
image=$(echo "$work"/pkg/boot/vmlinuz-*)
offset=$(LC_ALL=C grep -obUaP '\x02\x21\x4c\x18' "$image" | head -1 | cut -d: -f1)
tail -c +"$((offset + 1))" "$image" | lz4 -dcq > "$work/vmlinux" 2>/dev/null || true
[ "$(head -c 4 "$work/vmlinux" | tail -c 3)" = ELF ] || { echo "cannot unpack the kernel from $image" >&2; exit 1; }

root=$work/root
mkdir -p "$root"/{bin,modules,proc,sys,dev,etc,mnt,lib64}
busybox=$(find "$work/pkg" -path '*/bin/busybox' -type f | head -1)
cp "$busybox" "$root/bin/busybox"
for applet in $("$busybox" --list); do [ "$applet" = busybox ] || ln -s busybox "$root/bin/$applet"; done
rm -f "$root/bin/crun"
cp "$(find "$work/pkg" -path "*bin/crun" -type f | head -1)" "$root/bin/crun"
# For disks that outlive machines: what is on them may be of any tenant's making, and is looked at here, not on the host.
for tool in e2fsck resize2fs; do cp "$(find "$work/pkg" -path "*bin/$tool" -type f | head -1)" "$root/bin/$tool"; done
tcc=$work/pkg/usr/lib/x86_64-linux-gnu/tcc
for name in start call; do as -o "$work/$name.o" "$here/guest/$name.s"; done
compile() { "$work/pkg/usr/bin/tcc" "-B$tcc" -nostdinc -Wall -Werror -c "$1" -o "$work/object.o"; }
for source in "$here"/guest/*.c "$here"/jail/{jail,give}.c; do
  compile "$source"
  ld -s -o "$root/bin/$(basename "$source" .c)" "$work/start.o" "$work/call.o" "$work/object.o"
done
compile "$here/jail/read-only.c"
ld -shared -s -Bsymbolic -o "$work/read-only.so" "$work/call.o" "$work/object.o"
mv "$root"/bin/{frequency,jail,give} "$work/"
# crun needs libsystemd only to talk to systemd, which is not there; loading it and what it brings would take half of the
# time that a container takes to start. In its place one whose functions all fail.
nm -D --undefined-only "$root/bin/crun" | awk '$2 ~ /@LIBSYSTEMD/ { split($2, part, "@+"); print part[1], part[2] }' > "$work/symbols"
{
  echo .text
  while read -r name _; do printf '.globl %s\n.type %s, @function\n%s:\n' "$name" "$name" "$name"; done < "$work/symbols"
  echo 'movl $-38, %eax'
  echo ret
} > "$work/libsystemd.s"
cut -d' ' -f2 "$work/symbols" | sort -u | while read -r version; do
  echo "$version { $(awk -v version="$version" '$2 == version { printf "%s; ", $1 }' "$work/symbols") };"
done > "$work/libsystemd.map"
mkdir "$work/stub"
as -o "$work/object.o" "$work/libsystemd.s"
ld -shared -s -soname libsystemd.so.0 --version-script "$work/libsystemd.map" -o "$work/stub/libsystemd.so.0" "$work/object.o"
libraries=$work/stub:$(find "$work/pkg" -name '*.so*' -printf '%h\n' | sort -u | paste -sd:)
LD_LIBRARY_PATH=$libraries ldd "$root"/bin/{crun,e2fsck,resize2fs} |
  awk '/=> \// { print $3 } /^\t\// { print $1 }' | sort -u | while read -r library; do
    mkdir -p "$root/lib"
    cp -L "$library" "$root/lib/"
  done
cp -L /lib64/ld-linux-*.so* "$root/lib64/" 2>/dev/null || cp -L /lib/ld-linux-*.so* "$root/lib/"

# FOLDER MODULE...: in the order of their dependencies; what is built into a kernel is left out.
modules() {
  folder=$1
  shift
  mkdir -p "$folder"
  for module; do
    file=$(find "$work/pkg/lib/modules" -name "$module.ko" | head -1)
    [ -n "$file" ] || continue
    cp "$file" "$folder/$module.ko"
    strip --strip-debug "$folder/$module.ko"
    echo "$module" >> "$folder/order"
  done
}
modules "$root/modules" virtio_ring virtio virtio_pci_legacy_dev virtio_pci_modern_dev virtio_pci failover net_failover virtio_net \
  virtio_console scsi_common scsi_mod sd_mod virtio_scsi overlay squashfs
# For machines with folders of NFS servers alone: packed, they take a third of the memory of all others.
modules "$work/nfs" grace sunrpc lockd netfs fscache nfs dns_resolver nfsv4
tar -C "$work/nfs" --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -cf - . | gzip -9 -n > "$root/modules/nfs.tgz"
cp "$here/guest/init" "$root/init"
cp "$here/guest/vmlet" "$root/bin/vmlet"
chmod 755 "$root/init" "$root/bin/vmlet"

find "$root" -exec touch -h -d @0 {} +
(cd "$root" && find . | LC_ALL=C sort | cpio --quiet --reproducible -o -H newc -R 0:0) > "$work/base.cpio"
chmod 644 "$work/vmlinux" "$work/base.cpio" "$work/read-only.so"
cat "$work/frequency" "$work/vmlinux" "$work/base.cpio" | sha256sum | cut -c1-16 > "$work/version"
files=(packages frequency jail give read-only.so vmlinux base.cpio version)
(cd "$work" && sha256sum "${files[@]}" > sums && sync "${files[@]}" sums)
# What has its name is whole, also after a loss of power. The version comes last: where it is, there is an image.
for name in sums "${files[@]}"; do mv "$work/$name" "$out/$name"; done
sync "$out"
