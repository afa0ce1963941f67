#!/bin/bash
# Boot a real systemd as PID 1 in new namespaces, over a copy-on-write view of this machine that is gone with it. Needs root; takes a few seconds.
# usage: boot.sh SCRATCH FILES CGROUP
#   SCRATCH  an empty directory; a tmpfs is mounted there, in the new namespace only
#   FILES    a tree that is copied over the root directory before systemd starts
#   CGROUP   a directory in a cgroup2 hierarchy, made by the caller: systemd's root. There are no controllers: limits are not enforced
# OPEN in the environment: directories, divided by colons, that an ordinary user may pass through inside.
# KEEP in the environment: a directory that is /var/lib/supervise and /srv inside, and survives the machine; empty: there is none.
# The first child of the process that this script becomes is the new PID 1; SIGKILL to it ends everything.
set -euo pipefail
export PATH="$PATH:/usr/sbin:/sbin"  # a user's PATH may lack them
export SCRATCH=$(realpath "$1") FILES=$(realpath "$2")
echo $$ > "$3/cgroup.procs"
exec unshare --pid --fork --kill-child --mount --uts --ipc --cgroup --propagation private bash -euo pipefail -c '
mount -t tmpfs -o mode=755 tmpfs "$SCRATCH"
mkdir "$SCRATCH"/{upper,work,root}
M=$SCRATCH/root
mount -t overlay overlay -o "lowerdir=/,upperdir=$SCRATCH/upper,workdir=$SCRATCH/work" "$M"
mount -t proc proc "$M/proc"
mount -t sysfs -o ro sysfs "$M/sys"
mount -t cgroup2 cgroup2 "$M/sys/fs/cgroup"
mount -t tmpfs -o mode=755 tmpfs "$M/run"
mount -t tmpfs -o mode=1777 tmpfs "$M/tmp"
mount -t tmpfs -o mode=755 tmpfs "$M/dev"
mkdir "$M"/dev/{pts,shm} "$M/oldroot"
mount -t devpts -o newinstance,ptmxmode=0666 devpts "$M/dev/pts"
mount -t tmpfs -o mode=1777 tmpfs "$M/dev/shm"
ln -s pts/ptmx "$M/dev/ptmx"
ln -s /proc/self/fd "$M/dev/fd"
for device in null zero full random urandom tty; do touch "$M/dev/$device"; mount --bind "/dev/$device" "$M/dev/$device"; done
mkdir -p "$M/etc/systemd/system"
# what would touch hardware, the network or the package index, or wait for them
for unit in systemd-networkd.service systemd-networkd-wait-online.service networking.service ifupdown-pre.service getty@tty1.service \
    systemd-udevd.service systemd-udev-trigger.service systemd-logind.service systemd-timesyncd.service systemd-resolved.service \
    apt-daily.timer apt-daily-upgrade.timer cron.service ssh.service; do ln -sfn /dev/null "$M/etc/systemd/system/$unit"; done
: > "$M/etc/machine-id"
cp -r --no-preserve=ownership "$FILES/." "$M/"
if [ -n "${KEEP:-}" ]; then
    for part in var/lib/supervise srv; do mkdir -p "$KEEP/$part" "$M/$part"; mount --bind "$KEEP/$part" "$M/$part"; done
fi
IFS=:
for directory in ${OPEN:-}; do chmod o+x "$M$directory"; done
hostname booted
cd "$M"
pivot_root . oldroot
umount -l /oldroot
exec env -i container=unshare PATH=/usr/sbin:/usr/bin:/sbin:/bin TERM=dumb \
    /lib/systemd/systemd --system --unit=multi-user.target --log-target=journal --show-status=false'
