#!/bin/bash
# Makes a host from Debian packages, without installing anything: vmlinuz and initrd (the cloud kernel and what it needs to
# find its root), and system (everything else, as a squashfs): the kernel's modules, the programs that engine oci needs, as
# they are installed here, those of volumes, AppArmor's parser and profiles, the application, the launcher of a guest image,
# and, for engine cri, what is in a folder of programs, with CNI's plugins.
# Usage: image.sh kernel FOLDER, once; then image.sh system FOLDER APPLICATION GUEST [PROGRAMS].
# Needs: apt-get, dpkg-deb, cpio, ldd, mksquashfs, busybox-static and what `vmlet backend check` asks for.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
what=$1
out=$2
work=$(mktemp -d "$out/.build-XXXXXX")
trap 'rm -rf "$work"' EXIT

kernel() {
  mkdir "$work/debs" "$work/pkg" "$work/root"
  local arch package modules module file
  arch=$(dpkg --print-architecture)
  package=$(apt-cache depends "linux-image-cloud-$arch" | awk '/Depends:/ { print $2; exit }')
  [ -n "$package" ] || { echo "no kernel package for $arch: run apt-get update" >&2; exit 1; }
  (cd "$work/debs" && apt-get -qq -o APT::Sandbox::User=root download "$package")
  for deb in "$work"/debs/*.deb; do dpkg-deb -x "$deb" "$work/pkg"; done
  mv "$work"/pkg/boot/vmlinuz-* "$out/vmlinuz"
  modules=$(echo "$work"/pkg/lib/modules/*)
  busybox depmod -b "$work/pkg" "$(basename "$modules")"
  mkdir -p "$work/root/bin" "$work/root/modules"
  cp "$(command -v busybox)" "$work/root/bin/busybox"
  cp "$here/initramfs-init" "$work/root/init"
  chmod 755 "$work/root/init"
  # In the order of their dependencies; what is built into the kernel is left out.
  for module in virtio_ring virtio virtio_pci_legacy_dev virtio_pci_modern_dev virtio_pci virtio_blk squashfs overlay \
    crc16 mbcache jbd2 crc32c_generic libcrc32c ext4; do
    file=$(find "$modules" -name "$module.ko")
    [ -n "$file" ] || continue
    cp "$file" "$work/root/modules/"
    echo "$module" >> "$work/root/modules/order"
  done
  (cd "$work/root" && find . | LC_ALL=C sort | cpio --quiet -o -H newc -R 0:0) > "$out/initrd"
  mkdir -p "$out/lib"
  rm -rf "$out/lib/modules"
  mv "$work/pkg/lib/modules" "$out/lib/modules"
  mkdir "$work/apparmor"
  (cd "$work/apparmor" && apt-get -qq -o APT::Sandbox::User=root download apparmor)
  dpkg-deb -x "$work"/apparmor/*.deb "$work/apparmor/pkg"
  mkdir "$out/apparmor"
  cp "$(find "$work/apparmor/pkg" -name apparmor_parser -type f)" "$out/apparmor/"
  cp -r "$work/apparmor/pkg/etc/apparmor.d" "$out/apparmor/"
}

# A program and what it is linked with, at its place.
program() {
  local path=$1 library
  cp -L "$path" "$root/usr/bin/"
  { ldd "$path" 2>/dev/null || true; } | grep -o '/[^ ]*' | while read -r library; do
    [ -e "$library" ] || continue
    mkdir -p "$root/usr$(dirname "${library#/usr}")"
    cp -Ln "$library" "$root/usr${library#/usr}"
  done
}

system() {
  root=$work/root
  local applet tool
  mkdir -p "$root"/usr/{bin,lib,lib64,share/containers} "$root"/{proc,sys,dev,run,tmp,root,var/lib,var/tmp,etc/containers,etc/vmlet}
  for folder in bin lib lib64; do ln -s "usr/$folder" "$root/$folder"; done
  ln -s usr/bin "$root/sbin"
  ln -s bin "$root/usr/sbin"
  cp "$(command -v busybox)" "$root/usr/bin/busybox"
  for applet in $(busybox --list); do [ "$applet" = busybox ] || ln -s busybox "$root/usr/bin/$applet"; done
  for tool in bash cp du flock ip mount nft nsenter rm runc skopeo tar umoci umount unshare \
    losetup dd fallocate mkfs.ext4 debugfs e2fsck resize2fs find; do
    rm -f "$root/usr/bin/$tool"
    program "$(command -v "$tool")"
  done
  cp /etc/mke2fs.conf "$root/etc/"
  if [ -n "${5:-}" ]; then
    mkdir -p "$root/usr/lib/cri" "$root/usr/lib/cni"
    cp -L "$5"/* "$root/usr/lib/cri/"
    cp -L /usr/lib/cni/{bridge,host-local,loopback} "$root/usr/lib/cni/"
  fi
  program "$out/apparmor/apparmor_parser"
  cp -r "$out/apparmor/apparmor.d" "$root/etc/"
  program "$3/app/bin/node"
  rm "$root/usr/bin/node"
  cp /usr/share/containers/seccomp.json "$root/usr/share/containers/"
  [ -e /etc/containers/policy.json ] && cp /etc/containers/policy.json "$root/etc/containers/"
  echo root:x:0:0:root:/root:/bin/sh > "$root/etc/passwd"
  echo root:x:0: > "$root/etc/group"
  echo 127.0.0.1 localhost > "$root/etc/hosts"
  echo nameserver 10.0.2.3 > "$root/etc/resolv.conf"
  cp "$here/init" "$root/etc/powercut-init"
  chmod 755 "$root/etc/powercut-init"
  rm "$root/usr/bin/init"
  ln -s /etc/powercut-init "$root/usr/bin/init"
  cp -r "$out/lib/modules" "$root/usr/lib/modules"
  cp -r "$3/app" "$root/app"
  # For jail.ts, which runs as it is, with the launcher of the engine vm.
  mkdir -p "$root/app/test/powercut/host" "$root/app/guest"
  cp -r "$here"/../../../{src,providers} "$root/app/"
  cp "$here/jail.ts" "$root/app/test/powercut/host/"
  cp "$4"/{jail,read-only.so} "$root/app/guest/"
  # Unpacking would cost an emulated processor more than reading.
  mksquashfs "$root" "$work/system" -quiet -no-progress -noI -noD -noF -noX
  mv "$work/system" "$out/system"
}

"$what" "$@"
