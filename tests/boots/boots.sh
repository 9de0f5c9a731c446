#!/bin/bash
# boots.sh [BOOTS]: a machine with systemd and mdadm boots again and again from its own disk, with the Debian package installed as docs/boot.md
# says: an array of three NVMe drives with a file system that fstab mounts. Every third boot a drive comes ten seconds late, every
# fourth ends by a power cut. At each boot the file system must be mounted, the array not degraded, and the notes of all former
# boots there. Then the package is upgraded under load, a drive is pulled: mail, webhook and journal tell of it, and events outlive a
# server that is killed.
#
# `cargo xtask package` makes the package first. It takes half a minute a boot, so `./test` leaves it out.
set -euo pipefail
here=$(dirname "$(realpath "$0")")
. "$here/../../scripts/array.sh"
. "$root/scripts/vm/initrd.sh"
BOOTS=${1:-20}
LATE_SECONDS=10
BOOT_SECONDS=240
packages=("$root"/target/debian/twill_*.deb)
[[ -e ${packages[0]} ]] || die "there is no package: cargo xtask package makes it"
for tool in mmdebstrap qemu-system-x86_64 modprobe cpio mke2fs; do command -v $tool >/dev/null || skip "$tool is not installed"; done
begin
kernel=$("$root/scripts/vm/fetch-kernel")
version=${kernel##*/}
tree=$scratch/root disk=$scratch/disk.img initrd=$scratch/initrd.gz

install_system() { # a Debian with the package, and what an operator sets up by docs/boot.md
    mmdebstrap --quiet --variant=minbase --include=systemd-sysv,udev,mdadm,e2fsprogs,kmod,dbus,jq,python3-minimal,libpython3-stdlib \
        "$(. /etc/os-release; echo "$VERSION_CODENAME")" "$tree" 2>"$scratch/mmdebstrap" || die "$(tail -n 3 "$scratch/mmdebstrap")"
    cp "${packages[-1]}" "$tree/tmp/twill.deb"
    chroot "$tree" dpkg --install /tmp/twill.deb >"$scratch/dpkg" 2>&1 || die "dpkg: $(tail -n 3 "$scratch/dpkg")"
    # The same program as a newer version, for an upgrade.
    dpkg-deb --raw-extract "${packages[-1]}" "$scratch/newer"
    sed -i 's/^Version: .*/&+newer/' "$scratch/newer/DEBIAN/control"
    dpkg-deb --build --root-owner-group "$scratch/newer" "$tree/var/cache/newer.deb" >/dev/null
    mkdir -p "$tree/lib/modules"
    cp -r "$kernel/lib/modules/$version" "$tree/lib/modules/"
    printf 'nvme\nublk_drv\n' >"$tree/etc/modules-load.d/drives.conf"
    cp "$here/first-boot" "$here/at-boot" "$here/alerts" "$here/catch-webhook" "$tree/usr/local/sbin/"
    cp "$here/sendmail" "$tree/usr/sbin/sendmail"
    cp "$here"/*.service "$tree/etc/systemd/system/"
    chroot "$tree" systemctl enable first-boot at-boot catch-webhook >/dev/null 2>&1
    echo 'TWILL_OPTIONS="--ublk=0 --wait-members 30s"' >"$tree/etc/twill/store.env"
    echo 'TWILL_MONITOR="--mail root --webhook http://127.0.0.1:8080/twill"' >"$tree/etc/twill/monitor.env"
    echo boots >"$tree/etc/hostname"
    truncate -s 3G "$disk"
    mke2fs -q -t ext4 -d "$tree" "$disk"
    rm -rf "$tree"
}

make_initrd() { # mounts the disk and becomes its systemd
    busybox_initrd "$initrd" "$kernel" virtio_pci virtio_blk ext4 <<'INIT'
#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
echo INITRD >/dev/ttyS1
for m in $(cat /modules.order); do insmod /modules/$m; done
until mount -t ext4 /dev/vda /disk; do sleep 0.2; done
for d in proc sys dev; do mount --move /$d /disk/$d; done
exec switch_root /disk /sbin/init
INIT
}

machine=''
start_machine() { # DRIVE…: boots with these drives. An emulated processor now and then fails in the first second of a kernel.
    local attempt
    for attempt in 1 2 3; do
        start_qemu "$@"
        while kill -0 "$machine" 2>/dev/null; do
            ! grep -q '^INITRD' "$scratch/said" || return 0
            ! grep -q 'Kernel panic' "$scratch/console" || kill -9 "$machine"
            sleep 0.2
        done
        wait "$machine" 2>/dev/null || true
    done
    die "the machine does not come up: $(tail -n 20 "$scratch/console"; cat "$scratch/qemu")"
}
start_qemu() { # DRIVE…
    local number
    local -a drives=()
    for number in 0 1 2; do
        [[ -e $scratch/drive$number ]] || truncate -s 256M "$scratch/drive$number"
        drives+=(-drive "if=none,id=drive$number,format=raw,file=$scratch/drive$number,cache=writeback,discard=unmap"
                 -device "pcie-root-port,id=port$number,chassis=$((number + 1)),slot=$((number + 1))")
    done
    for number in "$@"; do drives+=(-device "nvme,id=nvme$number,bus=port$number,drive=drive$number,serial=drive$number"); done
    : >"$scratch/console"; : >"$scratch/said"
    rm -f "$scratch/qmp"
    qemu-system-x86_64 -M q35 -accel tcg,thread=multi -cpu max,-erms -m 1G -smp 2 -nodefaults -display none -no-reboot \
        -drive "if=none,id=disk,format=raw,file=$disk,cache=writeback" -device virtio-blk-pci,drive=disk "${drives[@]}" \
        -serial "file:$scratch/console" -serial "file:$scratch/said" -qmp "unix:$scratch/qmp,server=on,wait=off" \
        -kernel "$kernel/lib/modules/$version/vmlinuz" -initrd "$initrd" \
        -append "console=ttyS0 loglevel=4 panic=-1 oops=panic no_timer_check systemd.show_status=0 ${APPEND-}" >"$scratch/qemu" 2>&1 & machine=$!
}
qmp() { # COMMAND…
    python3 - "$scratch/qmp" "$@" <<'QMP'
import json, socket, sys
stream = socket.socket(socket.AF_UNIX); stream.connect(sys.argv[1])
lines = stream.makefile("rw")
lines.readline()
for command in ['{"execute":"qmp_capabilities"}'] + sys.argv[2:]:
    lines.write(command + "\n"); lines.flush()
    while True:
        answer = json.loads(lines.readline())
        if "error" in answer: sys.exit(str(answer["error"]))
        if "return" in answer: break
QMP
}
plug() { qmp "{\"execute\":\"device_add\",\"arguments\":{\"driver\":\"nvme\",\"id\":\"nvme$1\",\"bus\":\"port$1\",\"drive\":\"drive$1\",\"serial\":\"drive$1\"}}"; }
pull() { qmp "{\"execute\":\"device_del\",\"arguments\":{\"id\":\"nvme$1\"}}"; }

said() { # WORD: waits until the machine says it
    local end=$((SECONDS + BOOT_SECONDS))
    until grep -q "^$1" "$scratch/said"; do
        ! grep -q "^FAILED" "$scratch/said" || { sleep 5; die "the machine says: $(tail -n 60 "$scratch/said")"; }
        kill -0 "$machine" 2>/dev/null || die "the machine has ended: $(tail -n 20 "$scratch/console")"
        ((SECONDS < end)) || die "the machine does not say $1: $(cat "$scratch/said"; tail -n 20 "$scratch/console")"
        sleep 0.2
    done
    grep "^$1" "$scratch/said" | tail -n 1
}
ended() {
    local end=$((SECONDS + BOOT_SECONDS))
    while kill -0 "$machine" 2>/dev/null; do
        ((SECONDS < end)) || die "the machine does not shut down: $(tail -n 20 "$scratch/console")"
        sleep 0.2
    done
    wait "$machine" || true
    machine=''
}

install_system
make_initrd
say "installed: $(basename "${packages[-1]}") in $(du -h --apparent-size "$disk" | cut -f1) with Linux $version"
start_machine 0 1 2
said "READY" >/dev/null # first-boot has made the array
ended
for ((boot = 1; boot <= BOOTS; boot++)); do
    how=clean late=''
    if ((boot % 3 == 0)); then
        late=$((boot / 3 % 3))
        present=(0 1 2); unset "present[$late]"
        start_machine "${present[@]}"
        sleep $LATE_SECONDS
        plug $late
    else
        start_machine 0 1 2
    fi
    line=$(said "BOOT")
    if ((boot % 4 == 0)); then
        how="power cut"
        kill -9 "$machine"; wait "$machine" 2>/dev/null || true
    else
        qmp '{"execute":"system_powerdown"}'
        ended
    fi
    notes=$(awk '{ print $2 }' <<<"$line")
    ((notes == boot)) || die "boot $boot: the file system has the notes of $notes boots"
    say "boot $boot: $line${late:+, drive $late late by $LATE_SECONDS s}, end: $how"
done
APPEND=twill.alerts start_machine 0 1 2
say "$(said UPGRADED)"
said "WAITING" >/dev/null
pull 1
line=$(said ALERTED)
say "$line"
qmp '{"execute":"system_powerdown"}'
ended
say "$BOOTS boots: mounted each time, never degraded"
