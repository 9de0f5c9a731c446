#!/bin/bash
# vm: --mem 2G --mod nvme-tcp,raid456 --timeout 1800
# takes: 180 s
# nvme-tcp.sh: the kernel's NVMe/TCP host uses `twill target` and `twill serve --nvme-tcp`: discovery, Identify, data under load,
# with and without digests, reservations, servers that are killed under load and come back, links that are cut, and hosts that
# are not allowed.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/md.sh"
. "$(dirname "${BASH_SOURCE[0]}")/device.sh"
command -v nvme >/dev/null || skip "nvme-cli is not installed"
. "$(dirname "${BASH_SOURCE[0]}")/nvme-host.sh"

serve_array() { # OPTION…: serves the members to NVMe/TCP hosts
    TWILL_STATE_DIR=$scratch/state start_server array_answers --nvme-tcp 127.0.0.1 --nvme-nqn $SUBSYSTEM --reservations-new "$@" "${members[@]}"
}
connected_array() { # COUNT OPTION…: an array of ram drives, and the host is connected to it with these options
    ram_members "$1"
    create 5 "${members[@]}"
    serve_array --allow-host $HOST
    connect --reconnect-delay 1 --ctrl-loss-tmo 120 "${@:2}"
}
disconnected_array() { # the host leaves; parity agrees, and the array is clean
    disconnect
    agrees_everywhere
    stop_array
    no_errors_above
}
# Linux says errors of one path to a namespace, nvme0c0n1 and the like, and then sends the request again by another or a new one.
no_errors_above() {
    ! dmesg | grep -vE "dev nvme[0-9]+c[0-9]+n[0-9]+," | grep -E "I/O error|EXT4-fs error|Buffer I/O" || die "the kernel saw errors"
}
set_link() { ip link set lo "$1" 2>/dev/null || busybox ip link set lo "$1"; }
cut_link() { # SECONDS: to and from every address of the loopback device
    set_link down
    sleep "$1"
    set_link up
}

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

array_verified() {
    connected_array 4 --hdr-digest --data-digest
    "$TWILL" status --control "$control" | grep -q "nvme+tcp://127.0.0.1:$PORT/$SUBSYSTEM (1 connected)" || die "status: $("$TWILL" status --control "$control")"
    [[ $(blockdev --getsize64 "$device") == $("$TWILL" detail --json --control "$control" | jq .size_bytes) ]] || die "the size of $device"
    if "$TWILL" stop --control "$control" >"$scratch/stop" 2>&1; then die "an array stops under its host"; fi
    device_fio written --numjobs=2 --rw=randwrite --bsrange=4k-256k --blockalign=4k --size=4M --offset_increment=12M
    device_fio synced --rw=randwrite --bs=4k --size=256k --fsync=16 --sync=dsync
    blkdiscard --offset $((1 << 20)) --length $((1 << 20)) "$device"
    blkdiscard -z --offset $((4 << 20)) --length $((1 << 20 | 4096)) "$device"
    cmp -n $((1 << 20 | 4096)) -i $((4 << 20)):0 "$device" /dev/zero || die "not zero"
    disconnected_array
}

array_stopped_under() { # a stop that is forced, and a start later: the host waits, and reads what it wrote
    connected_array 4
    local load
    device_fio load --rw=randwrite --bs=16k --size=16M --time_based --runtime=8 & load=$!
    sleep 2
    stop_array --force
    sleep 1
    serve_array --allow-host $HOST
    wait $load || die "fio: $(tail -n 20 "$scratch/load.log")"
    disconnected_array
}

array_killed() {
    connected_array 4
    killed_under_a_file_system serve_array --allow-host $HOST
    disconnected_array
}

array_cut_off() { # longer than the keep-alive time
    connected_array 4 --keep-alive-tmo 2
    local load
    device_fio load --rw=randwrite --bs=16k --size=16M --time_based --runtime=10 & load=$!
    sleep 2
    cut_link 6
    wait $load || die "fio: $(tail -n 20 "$scratch/load.log")"
    disconnected_array
}

array_survives() { # WHAT: 20 times under load and under a file system
    connected_array 4 --keep-alive-tmo 2
    mke2fs -q -t ext4 "$device"
    mkdir -p "$scratch/mnt"
    mount "$device" "$scratch/mnt"
    local load round
    (cd "$scratch/mnt" && fio --name=load --filename=file --size=8M --direct=1 --ioengine=io_uring --iodepth=16 --rw=randwrite --bsrange=4k-64k --blockalign=4k \
        --verify=crc32c --verify_fatal=1 --verify_state_save=0 --loops=1000 --thread >"$scratch/load.log" 2>&1 </dev/null) & load=$!
    for ((round = 0; round < 20; round++)); do
        sleep 2
        kill -0 $load || die "fio after $round rounds: $(tail -n 20 "$scratch/load.log")"
        "$1"
    done
    sleep 5
    kill -INT $(pgrep -f name=load) || true
    wait $load || true
    ! grep -E "verify:|error" "$scratch/load.log" || die "fio: $(tail -n 20 "$scratch/load.log")"
    umount "$scratch/mnt"
    e2fsck -fn "$device" >"$scratch/fsck" 2>&1 || die "e2fsck: $(<"$scratch/fsck")"
    disconnected_array
}
once_killed() {
    kill_server
    sleep 1
    serve_array --allow-host $HOST
}
once_cut_off() { cut_link 6; }

reserved() { # nvme-cli's commands of reservations, and a target that restarts
    ram_members 2
    start_target --allow $HOST
    connect --reconnect-delay 1
    nvme resv-register "$device" --nrkey=17 --rrega=0 >"$scratch/resv" || die "resv-register"
    nvme resv-acquire "$device" --crkey=17 --rtype=2 --racqa=0 >>"$scratch/resv" || die "resv-acquire"
    is_held_by 17 2
    dd if=$RANDOM_DATA of="$device" bs=64K count=4 oflag=direct status=none || die "the holder writes"
    stop_target
    start_target --allow $HOST
    wait_for "the target that restarted" is_held_by 17 2
    nvme resv-release "$device" --crkey=17 --rtype=2 --rrela=0 >>"$scratch/resv" || die "resv-release"
    is_held_by 17 0
    nvme resv-register "$device" --crkey=17 --rrega=1 >>"$scratch/resv" || die "unregister"
    [[ $(report | jq .regctl) == 0 ]] || die "the report: $(report)"
    disconnect
    stop_target
}
report() { nvme resv-report "$device" --eds --numd=255 -o json; }
is_held_by() { # KEY TYPE
    [[ $(report | jq "[.rtype, .regctl, (.regctlext // .regctl_ext // .registrants)[0].rkey] | @csv" -r) == "$2,1,$1" ]]
}

authenticated() { # right, wrong and missing secrets, of the host and of the target
    local secret other own
    secret=$(nvme gen-dhchap-key --hmac=1 --nqn $HOST) other=$(nvme gen-dhchap-key --hmac=1 --nqn $HOST)
    own=$(nvme gen-dhchap-key --hmac=3 --nqn $SUBSYSTEM)
    (umask 077; echo "$secret" >"$scratch/secret")
    ram_members 2
    start_target --dhchap-key "$HOST=$scratch/secret" --dhchap-ctrl-key "$own"
    if connects; then die "a host without a secret connects"; fi
    if host discover >"$scratch/discover" 2>&1; then die "a host without a secret discovers: $(cat "$scratch/discover")"; fi
    if connects --dhchap-secret "$other"; then die "a host with a wrong secret connects"; fi
    if connects --dhchap-secret "$secret" --dhchap-ctrl-secret "$other"; then die "a host trusts a target with another secret"; fi
    connects --dhchap-secret "$secret" --dhchap-ctrl-secret "$own" || die "connect: $(cat "$scratch/connect"; dmesg | tail -n 5)"
    wait_for "namespace 1" find_device
    device_fio proven --rw=randwrite --bs=16k --size=1M
    disconnect
    stop_target
    [[ $(grep -c "did not authenticate" "$scratch/target.log") -ge 2 ]] || die "the log has no word of it: $(cat "$scratch/target.log")"
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
run_case "fio without flow control" verified --disable-sqflow
run_case "a file system" file_system
long_case "a target that is killed under load" killed
run_case "a host that is not allowed" refused
run_case "DH-HMAC-CHAP" authenticated
run_case "reservations" reserved
run_case "an array" array_verified
run_case "an array that is stopped and started under load" array_stopped_under
run_case "an array whose server is killed under a file system" array_killed
run_case "an array behind a link that is cut" array_cut_off
long_case "an array whose server is killed 20 times" array_survives once_killed
long_case "an array behind a link that is cut 20 times" array_survives once_cut_off
summary
