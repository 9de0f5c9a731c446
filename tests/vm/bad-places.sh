#!/bin/bash
# vm: --mem 3G --mod ublk_drv,raid456,dm-mod,dm-flakey --timeout 600
# takes: 134 s
# bad-places.sh: in the resync after a crash a member cannot read a block. The resync continues; twill, and md after it,
# return an error for that block and no other. When the member can read the block again, all data is there.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/md.sh"
device=$BLOCK_DEVICE

# RAID-5 of four, left-symmetric: the first block of stripe 4 is on member 0, its parity on member 3, and beside it a block of
# member 1.
CHUNK=65536 STRIPE=4
BLOCK=$((STRIPE * 3 * CHUNK / 4096)) BESIDE=$(((STRIPE * 3 + 1) * CHUNK / 4096))
WRITTEN=48 # blocks that the load writes; they are not compared

table() { # good|bad: the device-mapper table of member 0, which can or cannot read the block
    local size at
    size=$(blockdev --getsz /dev/ram0)
    at=$(((data_offset + STRIPE * CHUNK) / 512))
    case $1 in
        good) echo "0 $size linear /dev/ram0 0" ;;
        bad)
            echo "0 $at linear /dev/ram0 0"
            echo "$at 8 flakey /dev/ram0 $at 0 3600 1 error_reads"
            echo "$((at + 8)) $((size - at - 8)) linear /dev/ram0 $((at + 8))"
            ;;
    esac
}

member_is() { # good|bad
    table "$1" >"$scratch/table"
    if [[ -b /dev/mapper/m0 ]]; then
        dmsetup suspend m0 && dmsetup load m0 "$scratch/table" && dmsetup resume m0
    else
        dmsetup create m0 "$scratch/table"
    fi
    ! dd if=/dev/mapper/m0 of=/dev/null bs=512 skip=$(((data_offset + STRIPE * CHUNK) / 512)) count=8 iflag=direct status=none 2>/dev/null || [[ $1 == good ]] ||
        die "the block can be read"
}

lost() { # DEVICE BLOCK…: only these blocks cannot be read; all others are as written
    local from=$1 at=$WRITTEN block; shift
    echo 3 >/proc/sys/vm/drop_caches
    for block in "$@" $(($(stat -c %s "$scratch/wanted") / 4096)); do
        cmp -i $((at * 4096)) -n $(((block - at) * 4096)) "$scratch/wanted" "$from" || die "$from holds other data"
        at=$((block + 1))
    done
    for block; do
        ! dd if="$from" of=/dev/null bs=4096 skip="$block" count=1 iflag=direct status=none 2>/dev/null || die "block $block of $from can be read"
    done
}

has_written_enough() { (($("$TWILL" detail --json --control "$control" | jq .counters.writes) > 100)); }

crash_and_resync() {
    serve_block "${members[@]}"
    fio --name=load --filename=$device --direct=1 --ioengine=io_uring --rw=randwrite --bs=4k --size=$((WRITTEN * 4))k --iodepth=16 \
        --time_based --runtime=600 --thread >"$scratch/load.log" 2>&1 </dev/null & local load=$!
    wait_for "writes" has_written_enough
    kill -0 $load || die "the load has ended: $(<"$scratch/load.log")"
    kill_server # the load waits for the next server
    member_is bad
    serve_block "${members[@]}"
    settled
    kill -9 $load && wait $load 2>/dev/null || true
    "$TWILL" events --control "$control" >"$scratch/events"
    grep -q "resync finished\|parity agrees" "$scratch/events" || { cat "$scratch/events"; die "no end of a resync"; }
    grep "bad-block log" "$scratch/events" || die "no event names the block"
}

a_resync_goes_on_and_md_believes_it() {
    ram_members 4
    data_offset=0
    table good | dmsetup create m0
    members[0]=/dev/mapper/m0
    "$TWILL" create --level 5 --chunk 64K --name bad --assume-clean "${members[@]}" >/dev/null
    data_offset=$("$TWILL" examine --json "${members[0]}" | jq .members[0].superblock.data_offset_bytes)
    serve_block "${members[@]}"
    dd if=$RANDOM_DATA of=$device bs=1M oflag=direct status=none 2>/dev/null || true
    dd if=$device of="$scratch/wanted" bs=1M iflag=direct status=none
    stop_array
    crash_and_resync
    lost $device $BLOCK
    dd if=$RANDOM_DATA of=$device bs=4096 seek=$BESIDE count=1 oflag=direct status=none || die "the block beside it cannot be written"
    dd if=$RANDOM_DATA of="$scratch/wanted" bs=4096 seek=$BESIDE count=1 conv=notrunc status=none
    lost $device $BLOCK
    stop_array
    [[ $(mdadm --examine-badblocks /dev/ram3 | grep -c "for 8 sectors") == 1 ]] || die "mdadm sees no bad block: $(mdadm --examine-badblocks /dev/ram3)"

    # md, read-only, so that it changes nothing. (Without a member, a read-only md retries such a block for ever, whatever its
    # log says.)
    mdadm --quiet --assemble --readonly /dev/md0 "${members[@]}" || die "mdadm --assemble"
    lost /dev/md0 $BLOCK
    md_stop

    # Now the drive can read the block.
    member_is good
    serve_block "${members[@]}"
    lost $device
    timeout 120 "$TWILL" repair --control "$control" >"$scratch/repair" 2>&1 || die "twill repair: $(tail -n 5 "$scratch/repair")"
    lost $device
    stop_array
    ! mdadm --examine-badblocks /dev/ram3 | grep "sectors" || die "the parity is still bad"
    md_assemble "${members[@]}"
    lost /dev/md0
    md_check
    md_stop
    dmsetup remove m0
}

run_case "a resync goes on behind a block that cannot be read, and md believes it" a_resync_goes_on_and_md_believes_it
summary
