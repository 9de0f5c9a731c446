#!/bin/bash
# vm: --mem 2G --mod nvme-tcp,raid456 --timeout 1800
# takes: 30 s
# nvme-tcp.sh: the kernel's NVMe/TCP host uses `twill target`: discovery, Identify, data under load, with and without digests,
# a target that is killed under load and comes back, and a host that is not allowed.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/md.sh"
. "$(dirname "${BASH_SOURCE[0]}")/device.sh"
command -v nvme >/dev/null || skip "nvme-cli is not installed"
PORT=4420
HOST=nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555
HOST_ID=11111111-2222-3333-4444-555555555555
SUBSYSTEM=nqn.2026-11.test:drive
target=

start_target() { # ARGUMENT…: serves /dev/ram0 and /dev/ram1 as namespaces 1 and 2
    TWILL_STATE_DIR=$scratch/state "$TWILL" target --reservations-new --listen 127.0.0.1:$PORT "$@" /dev/ram0=$SUBSYSTEM /dev/ram1=$SUBSYSTEM \
        >"$scratch/target" 2>>"$scratch/target.log" & target=$!
    wait_for "the target" grep -qs listening "$scratch/target"
}
stop_target() {
    kill "$target"
    wait "$target" || die "the target: $(cat "$scratch/target.log")"
}

host() { # COMMAND OPTION…: nvme-cli as this host
    local command=$1; shift
    nvme "$command" -t tcp -a 127.0.0.1 -s $PORT --hostnqn $HOST --hostid $HOST_ID "$@"
}
connect() { # OPTION…: connects, and sets $device to namespace 1
    host connect -n $SUBSYSTEM --nr-io-queues 2 "$@" >"$scratch/connect" 2>&1 || die "connect: $(cat "$scratch/connect"; dmesg | tail -n 5)"
    wait_for "namespace 1" find_device
}
find_device() {
    local one
    for one in /sys/class/nvme-subsystem/*/subsysnqn; do
        [[ -e $one && $(<"$one") == "$SUBSYSTEM" ]] || continue
        # Linux numbers disks as it finds them: the one with a 1 may be namespace 2.
        for one in "${one%/*}"/nvme*n*; do
            device=/dev/${one##*/}
            [[ -b $device && $(<"$one/nsid") == 1 ]] && return 0
        done
    done
    return 1
}
disconnect() { nvme disconnect -n $SUBSYSTEM >/dev/null || die "nvme disconnect"; }

identified() { # what nvme-cli shows is what is served
    ram_members 2
    start_target --allow $HOST
    host discover >"$scratch/discover" || die "discover"
    grep -q "subnqn: *$SUBSYSTEM" "$scratch/discover" || die "discover: $(cat "$scratch/discover")"
    host connect-all || die "connect-all"
    wait_for "namespace 1" find_device
    local controller
    controller=$(nvme list-subsys -o json | grep -o '"nvme[0-9]*"' | tail -n 1 | tr -d '"')
    nvme id-ctrl "/dev/$controller" >"$scratch/id-ctrl" || die "id-ctrl"
    grep -q "^subnqn *: *$SUBSYSTEM" "$scratch/id-ctrl" || die "id-ctrl: $(cat "$scratch/id-ctrl")"
    nvme id-ns "$device" >"$scratch/id-ns" || die "id-ns"
    nvme list-ns "/dev/$controller" >"$scratch/list-ns" || die "list-ns"
    [[ $(grep -c : "$scratch/list-ns") == 2 ]] || die "list-ns: $(cat "$scratch/list-ns")"
    [[ $(blockdev --getsize64 "$device") == $((RAM_MIB << 20)) ]] || die "the size of $device"
    nvme list >"$scratch/list"
    grep -q "$device" "$scratch/list" || die "list: $(cat "$scratch/list")"
    nvme smart-log "/dev/$controller" >/dev/null || die "smart-log"
    nvme error-log "/dev/$controller" >/dev/null || die "error-log"
    nvme get-feature "/dev/$controller" -f 7 >/dev/null || die "get-feature"
    if nvme compare "$device" -s 0 -z 512 -d /dev/zero >/dev/null 2>&1; then die "compare is not refused"; fi
    disconnect
    stop_target
}

verified() { # OPTION…: connects with these, and what fio writes it reads
    ram_members 2
    start_target --allow $HOST
    connect "$@"
    device_fio written --numjobs=2 --rw=randwrite --bsrange=4k-256k --blockalign=4k --size=4M --offset_increment=6M
    device_fio synced --rw=randwrite --bs=4k --size=512k --fsync=16 --sync=dsync
    disconnect
    stop_target
    kernel_saw_no_errors
}

file_system() {
    ram_members 2
    start_target --allow $HOST
    connect
    mkfs.ext4 -q "$device"
    mkdir -p "$scratch/mount"
    mount "$device" "$scratch/mount"
    cp -r "$TREE" "$scratch/mount/"
    fstrim "$scratch/mount"
    umount "$scratch/mount"
    disconnect
    stop_target
    mount /dev/ram0 "$scratch/mount"
    diff -r "$TREE" "$scratch/mount/tree" || die "the file system has other files"
    umount "$scratch/mount"
    fsck.ext4 -fn /dev/ram0 >"$scratch/fsck" 2>&1 || die "fsck: $(cat "$scratch/fsck")"
}

killed() { # the target is killed under load and comes back: fio waits, and reads what it wrote
    ram_members 2
    start_target --allow $HOST
    connect --reconnect-delay 1 --ctrl-loss-tmo 60
    local load
    device_fio load --rw=randwrite --bs=16k --size=8M --loops=3 & load=$!
    local round
    for round in 1 2 3; do
        sleep 2
        kill -9 "$target"
        wait "$target" 2>/dev/null || true
        start_target --allow $HOST
    done
    wait $load || die "fio after $round kills: $(tail -n 20 "$scratch/load.log")"
    disconnect
    stop_target
}

refused() { # a host that is not named learns nothing
    ram_members 2
    start_target --allow nqn.2026-11.test:another
    if host discover >"$scratch/discover" 2>&1; then die "a host that is not allowed discovers"; fi
    if host connect -n $SUBSYSTEM >"$scratch/connect" 2>&1; then die "a host that is not allowed connects"; fi
    stop_target
}

run_case "discover, connect-all, id-ctrl, id-ns, list" identified
run_case "fio without digests" verified
run_case "fio with digests" verified --hdr-digest --data-digest
run_case "a file system" file_system
long_case "a target that is killed under load" killed
run_case "a host that is not allowed" refused
summary
