#!/bin/bash
# vm: --mem 3G --nvme 4:48M --mod ublk_drv,raid10,raid456,dm-mod --timeout 1800
# takes: 237 s
# ublk.sh: arrays as block devices: data, topology, file systems, zeroes; servers killed under load and started again;
# members pulled out; a machine with busy cores.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/md.sh"
. "$(dirname "${BASH_SOURCE[0]}")/device.sh"
device=$BLOCK_DEVICE

load_until_enough() { # NAME OPTION…: runs device_fio again and again until $scratch/enough exists
    until [[ -e $scratch/enough ]]; do device_fio "$@" || return 1; done
}

stopped() { # a clean stop removes the device, and md's check finds no mismatch
    "$TWILL" detail --json --control "$control" >"$scratch/detail.json"
    stop_array
    [[ ! -e $device && ! -e /dev/ublkc0 ]] || die "the device is still there"
    if (($# > 0)); then
        md_assemble "$@"
        md_check
        md_stop
    fi
}

verified() { # LEVEL MEMBERS
    made "$1" "$2"
    device_fio written --numjobs=2 --rw=randwrite --bsrange=4k-128k --blockalign=4k --size=4M --offset_increment=8M
    device_fio synced --rw=randwrite --bs=4k --size=512k --fsync=16 --sync=dsync
    no_errors
    stopped "${members[@]}"
}

topology() { # what the device reports to file systems
    made 5 5
    local queue=/sys/block/ublkb0/queue row
    for row in logical_block_size:512 physical_block_size:4096 minimum_io_size:65536 optimal_io_size:262144 \
        discard_granularity:262144 max_hw_sectors_kb:1024 fua:1 write_cache:"write back" nr_requests:128; do
        [[ $(<"$queue/${row%%:*}") == "${row#*:}" ]] || die "${row%%:*} is $(<"$queue/${row%%:*}"), not ${row#*:}"
    done
    [[ $(ls /sys/block/ublkb0/mq) == $'0\n1' ]] || die "not one queue for each of two shards"
    [[ $(lsblk --noheadings --output MIN-IO,OPT-IO,PHY-SEC,LOG-SEC $device | xargs) == "65536 262144 4096 512" ]] || die "lsblk"
    [[ $(blockdev --getsize64 $device) == $((44 << 20)) ]] || [[ $(blockdev --getsize64 $device) == $("$TWILL" detail --json --control "$control" | jq .size_bytes) ]] ||
        die "its size is $(blockdev --getsize64 $device)"
    stopped
    made 5 6 # five chunks of data, not a power of two
    [[ $(<$queue/optimal_io_size) == 65536 ]] || die "optimal_io_size is $(<$queue/optimal_io_size)"
    stopped
}

read_only() {
    made 5 3
    dd if=$RANDOM_DATA of=$device bs=1M count=2 oflag=direct status=none
    stopped
    options=--read-only serve_block "${members[@]}"
    cmp -n $((2 << 20)) $RANDOM_DATA $device || die "reads other data"
    ! dd if=/dev/zero of=$device bs=4k count=1 oflag=direct status=none 2>/dev/null || die "a read-only array took a write"
    stopped
}

refused() { # each refusal says what is in the way
    made 5 3
    local code=0
    "$TWILL" serve --ublk=0 --control "$scratch/other" "${members[@]}" >"$scratch/out" 2>&1 || code=$?
    [[ $code == 6 ]] || die "two servers of one array: status $code: $(<"$scratch/out")"
    exec 5<$device
    code=0
    "$TWILL" stop --control "$control" >"$scratch/out" 2>&1 || code=$?
    [[ $code == 18 ]] && grep -q "/dev/ublkb0 is in use" "$scratch/out" || die "stop in use: status $code: $(<"$scratch/out")"
    kill -TERM "$server"
    wait_for "a word of the server on SIGTERM" grep -q "not stopped" "$scratch/server.log"
    dd if=$device of=/dev/null bs=64k count=4 iflag=direct status=none || die "not served on after a stop that was refused"
    exec 5<&-
    stopped
    setpriv --reuid=65534 --clear-groups "$TWILL" serve --ublk "${members[@]}" >"$scratch/out" 2>&1 && code=0 || code=$?
    [[ $code == 15 ]] || die "as nobody: status $code: $(<"$scratch/out")"
}

zeroes() { # blkdiscard, blkdiscard -z, and the same in fio
    made 6 5
    discards_and_zeroes 16 4 5
    no_errors
    stopped "${members[@]}"
}

file_system() {
    made 5 5
    mke2fs -q -t ext4 $device
    [[ $(blkid -s TYPE -o value $device) == ext4 ]] || die "blkid does not see it"
    mkdir -p "$scratch/mnt"
    mount $device "$scratch/mnt"
    cp -r $TREE "$scratch/mnt/gone"
    cp -r $TREE "$scratch/mnt/kept"
    local code=0
    "$TWILL" stop --control "$control" >"$scratch/out" 2>&1 || code=$?
    [[ $code == 18 ]] || die "stop of a mounted device: status $code"
    rm -r "$scratch/mnt/gone"
    fstrim "$scratch/mnt"
    umount "$scratch/mnt"
    mount $device "$scratch/mnt"
    diff -r $TREE "$scratch/mnt/kept" || die "other files"
    umount "$scratch/mnt"
    e2fsck -fn $device >"$scratch/fsck" 2>&1 || die "e2fsck: $(<"$scratch/fsck")"
    no_errors
    stopped "${members[@]}"
}

killed() { # LEVEL MEMBERS OPTIONS OF fio…: two servers are killed under fio, which sees no error
    local level=$1 count=$2 round load; shift 2
    made "$level" "$count"
    load_until_enough load --numjobs=2 "$@" & load=$!
    for round in 1 2; do
        wait_for_writes ublkb0 40
        kill_server
        serve_block "${members[@]}"
        [[ $("$TWILL" detail --json --control "$control" | jq .block_device.recovered) == true ]] || die "not taken over"
    done
    : >"$scratch/enough"
    wait $load || die "fio saw it"
    settled
    no_errors
    stopped "${members[@]}"
}

handed_over() { # two servers stop cleanly under fio, which sees no error; no resync is due in between
    made 5 4
    local load round
    load_until_enough load --numjobs=2 --rw=randwrite --bsrange=4k-64k --blockalign=4k --size=2M --offset_increment=10M & load=$!
    for round in 1 2; do
        wait_for_writes ublkb0 40
        stop_array --keep-device
        [[ -b $device ]] || die "the device is gone"
        mdadm --examine "${members[0]}" | grep -q "State : clean" || die "not clean after an orderly end"
        serve_block "${members[@]}"
        [[ $("$TWILL" detail --json --control "$control" | jq -c '[.block_device.recovered, .rebuild]') == '[true,null]' ]] ||
            die "$("$TWILL" status --control "$control")"
    done
    : >"$scratch/enough"
    wait $load || die "fio saw it"
    no_errors
    stopped "${members[@]}"
}

killed_mounted() { # the server is killed under a file system; the next one takes over the device without --ublk
    made 5 5
    killed_under_a_file_system serve "${members[@]}"
    settled
    no_errors
    stopped "${members[@]}"
}

reads_alike() { # LEVEL COUNT: reads return the same data copied and zero copy, whole and degraded
    local level=$1 count=$2 copied size=$((12 << 20))
    made "$level" "$count"
    dd if=$RANDOM_DATA of=$device bs=1M count=12 oflag=direct status=none
    for copied in "" --no-zero-copy; do
        [[ $("$TWILL" detail --json --control "$control" | jq .block_device.zero_copy) == $([[ $copied ]] && echo false || echo true) ]] ||
            die "zero copy, with '$copied': $("$TWILL" detail --control "$control")"
        read_in_pieces $size
        dd if=$device of=/dev/null bs=4k skip=3 count=2 status=none # through the page cache, with its read-ahead
        if [[ -z $copied ]]; then
            stop_array
            options=--no-zero-copy serve_block "${members[@]}"
        fi
    done
    if [[ $level != 0 ]]; then
        stop_array
        serve_block "${members[@]}"
        "$TWILL" fail --control "$control" "${members[1]}" >/dev/null
        read_in_pieces $size
    fi
    no_errors
    stopped
}

nothing_locked() { # a server that may lock no memory registers the requests' memory but not its own
    made 5 4
    dd if=$RANDOM_DATA of=$device bs=1M count=4 oflag=direct status=none
    stop_array
    printf '#!/bin/sh\nexec prlimit --memlock=0 setpriv --bounding-set -ipc_lock %s "$@"\n' "$TWILL" >"$scratch/confined"
    chmod +x "$scratch/confined"
    TWILL=$scratch/confined serve_block "${members[@]}"
    grep -q "buffers are not registered" "$scratch/server.log" || die "$(<"$scratch/server.log")"
    read_in_pieces $((4 << 20))
    no_errors
    stopped
}

read_in_pieces() { # BYTES: direct reads of several sizes and offsets return what was written
    local bs
    for bs in 4k 36k 1M; do
        dd if=$device bs=$bs iflag=direct,count_bytes count="$1" status=none | cmp -n "$1" - $RANDOM_DATA || die "reads of $bs differ"
    done
    dd if=$device bs=512 skip=777 count=255 iflag=direct status=none | cmp - <(dd if=$RANDOM_DATA bs=512 skip=777 count=255 status=none) ||
        die "reads of 512 differ"
}

late() { # a member does not answer a zero-copy read: the member fails, and in the end the read returns the right data
    ram_members 4
    dmsetup create slow --table "0 $(blockdev --getsz "${members[1]}") linear ${members[1]} 0"
    members[1]=/dev/mapper/slow
    create 5 "${members[@]}"
    serve_block "${members[@]}"
    dd if=$RANDOM_DATA of=$device bs=1M count=8 oflag=direct status=none
    dmsetup suspend --noflush --nolockfs slow
    (sleep $((PATIENCE + 60)); dmsetup resume slow) & # without this, a failed case would hang
    dd if=$device of="$scratch/read" bs=1M count=8 iflag=direct status=none & local reader=$!
    wait_for "the end of a member that does not answer" member_1_failed
    # A later read avoids the member.
    timeout 20 dd if=$device bs=64k skip=64 count=8 iflag=direct status=none | cmp - <(dd if=$RANDOM_DATA bs=64k skip=64 count=8 status=none) ||
        die "a read behind the member's failure"
    kill -0 $reader || die "the read has ended before the member answered"
    dmsetup resume slow
    wait $reader || die "the read failed"
    cmp "$scratch/read" <(head -c $((8 << 20)) $RANDOM_DATA) || die "it read other data"
    no_errors
    stopped
    dmsetup remove slow
}

member_1_failed() { [[ $("$TWILL" detail --json --control "$control" | jq -r '.members[1].state') == failed ]]; }

pulled() { # a drive is removed from the machine while fio writes
    members=(/dev/nvme?n1)
    create 5 "${members[@]}"
    serve_block "${members[@]}"
    local victim=${members[1]##*/} load
    load_until_enough load --numjobs=2 --rw=randrw --bs=16k --size=3M --offset_increment=24M & load=$!
    wait_for_writes "$victim" 40
    echo 1 >"/sys/block/$victim/device/device/remove"
    wait_for_writes ublkb0 40
    : >"$scratch/enough"
    wait $load || die "fio saw it"
    [[ $("$TWILL" detail --json --control "$control" | jq .block_device.errors) == 0 ]] || die "requests failed"
    stopped
    echo 1 >/sys/bus/pci/rescan
}

saturated() { # two shards run on two cores that other processes keep busy
    made 5 4
    local i
    for i in 1 2 3 4; do (while :; do :; done) & done
    device_fio load --numjobs=2 --rw=randrw --bsrange=4k-64k --blockalign=4k --size=3M --offset_increment=8M
    # shellcheck disable=SC2046
    kill $(jobs -p | grep -v "^$server$")
    no_errors
    stopped "${members[@]}"
}

run_case "raid6 written and verified by fio" verified 6 5
for level in "5 4" "10 4"; do long_case "raid${level% *} written and verified by fio" verified $level; done
run_case "reads are alike, copied or not, raid5" reads_alike 5 4
for level in "6 5" "10 4" "0 3"; do long_case "reads are alike, copied or not, raid${level% *}" reads_alike $level; done
long_case "reads without memory that may be locked" nothing_locked
long_case "a member that does not answer a read" late
run_case "topology" topology
long_case "a read-only array" read_only
run_case "what is in the way is said" refused
run_case "discards and zeroes" zeroes
run_case "ext4: files, fstrim, fsck" file_system
run_case "the server killed twice under fio, raid5" killed 5 4 --rw=randwrite --bsrange=4k-64k --blockalign=4k --size=2M --offset_increment=10M
long_case "the server killed twice under fio, raid10" killed 10 4 --rw=randrw --bs=16k --size=2M --offset_increment=10M
run_case "the server handed over twice under fio" handed_over
run_case "the server killed under ext4" killed_mounted
run_case "a drive pulled out under load" pulled
run_case "a busy machine" saturated
summary
