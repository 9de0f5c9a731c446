#!/bin/bash
# vm: --mem 2G --zns 1:64M:4M:zoned.zone_capacity=3M,zoned.max_open=4,zoned.max_active=6,logical_block_size=4096,ms=64 --zns 1:64M:4M:zoned.max_open=4,zoned.max_active=6 --mod null_blk,configfs --timeout 300
# takes: 50 s
# zones.sh: zoned drives by every way in which they are written, held to one contract: emulated NVMe namespaces with and without
# metadata by appends and in order, and the kernel's null_blk with limits, a conventional, a read-only and an offline zone.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../../scripts/array.sh"
export TWILL_SCRATCH=/run

tries() { # ACCESS DRIVE WORDS…: a trial passes, and its answer has these words
    local access=$1 drive=$2 word; shift 2
    timeout 60 "$TWILL" zones --try --member-access "$access" "$drive" >"$scratch/tried" 2>&1 || die "$drive by $access: $(<"$scratch/tried")"
    for word; do grep -q -- "$word" "$scratch/tried" || die "no '$word' in: $(<"$scratch/tried")"; done
}

drive_with_blocks_of() { # BYTES: sets $drive to the zoned namespace with these blocks
    local queue
    for queue in /sys/block/nvme*/queue; do
        if [[ $(<"$queue/logical_block_size") == "$1" ]]; then
            drive=${queue%/queue} drive=/dev/${drive##*/}
            return
        fi
    done
    die "no drive with blocks of $1 bytes"
}

appends_with_metadata() {
    drive_with_blocks_of 4096
    tries auto "$drive" "appends with 64 bytes of metadata"
}

appends_without_metadata() {
    drive_with_blocks_of 512
    tries append "$drive" "appends, tried on 7 zones"
}

# Through another path than before: the drive's zones are empty, so the block layer and the drive agree on every pointer.
writes_in_order() {
    drive_with_blocks_of 4096
    tries write "$drive" "writes in order"
    drive_with_blocks_of 512
    tries write "$drive" "writes in order"
}

null_blk() { # makes /dev/nullb0: 16 zones of 4 MiB, the first one conventional
    local folder=/sys/kernel/config/nullb/nullb0 setting
    [[ ! -d $folder ]] || rmdir "$folder"
    modprobe -r null_blk
    modprobe null_blk nr_devices=0
    mkdir "$folder"
    for setting in size=64 blocksize=4096 memory_backed=1 zoned=1 zone_size=4 zone_capacity=3 zone_nr_conv=1 zone_max_open=3 zone_max_active=5; do
        echo "${setting#*=}" >"$folder/${setting%=*}"
    done
    echo 1 >"$folder/power"
    drive=/dev/nullb0
    wait_for "$drive" test -b "$drive"
}

null_blk_with_worn_zones() {
    local folder=/sys/kernel/config/nullb/nullb0
    null_blk
    echo $((13 * 4 << 11)) >"$folder/zone_readonly"
    echo $((14 * 4 << 11)) >"$folder/zone_offline"
    tries auto "$drive" "writes in order, tried on 6 zones and 2 worn zones"
    "$TWILL" zones "$drive" >"$scratch/zones"
    grep -qx "zone 0: no pointer" "$scratch/zones" || die "the conventional zone: $(<"$scratch/zones")"
    grep -qx "zone 13: read-only" "$scratch/zones" || die "the read-only zone: $(<"$scratch/zones")"
    grep -qx "zone 14: offline" "$scratch/zones" || die "the offline zone: $(<"$scratch/zones")"
}

reports_are_as_blkzone_says() {
    null_blk
    dd if=/dev/zero of="$drive" bs=4K count=3 seek=1024 oflag=direct status=none
    blkzone report "$drive" >"$scratch/wanted"
    "$TWILL" zones --json "$drive" >"$scratch/zones"
    [[ $(jq '.zones | length' "$scratch/zones") == $(wc -l <"$scratch/wanted") ]] || die "the number of zones"
    [[ $(jq -r '.zones[1] | "\(.state) \(.pointer_bytes)"' "$scratch/zones") == "implicitly-open 12288" ]] || die "zone 1: $(jq -c '.zones[1]' "$scratch/zones")"
    [[ $(jq .capacity_bytes "$scratch/zones") == $((3 << 20)) ]] || die "the capacity"
    # A trial leaves alone what holds something.
    code=0; "$TWILL" zones --try "$drive" >"$scratch/tried" 2>&1 || code=$?
    [[ $code == 3 ]] || die "code $code: $(<"$scratch/tried")"
    blkzone report "$drive" | diff - "$scratch/wanted" >&2 || die "a refused trial changed zones"
}

an_ordinary_device_is_no_zoned_one() {
    truncate -s 64M "$scratch/file"
    code=0; "$TWILL" zones "$scratch/file" >"$scratch/zones" 2>&1 || code=$?
    [[ $code == 4 ]] || die "code $code: $(<"$scratch/zones")"
    "$TWILL" zones --try --force --zone-size 1M "$scratch/file" >"$scratch/tried" 2>&1 || die "$(<"$scratch/tried")"
    grep -q "software zones" "$scratch/tried" || die "$(<"$scratch/tried")"
}

# A process that was killed holds the lock until its last command has ended: no start meets an append of its predecessor.
a_drive_with_a_locked_generic_device_is_in_use() {
    local lock code=0
    drive_with_blocks_of 4096
    exec {lock}<>"${drive/nvme/ng}"
    flock -n "$lock" || die "the generic device is locked already"
    "$TWILL" zones --try "$drive" >"$scratch/tried" 2>&1 || code=$?
    [[ $code == 6 ]] || die "code $code: $(<"$scratch/tried")"
    exec {lock}>&-
    tries auto "$drive" "appends"
}

run_case "appends with metadata" appends_with_metadata
run_case "a drive whose generic device is locked is in use" a_drive_with_a_locked_generic_device_is_in_use
run_case "appends without metadata" appends_without_metadata
run_case "the same drives, written in order" writes_in_order
run_case "null_blk, with a read-only and an offline zone" null_blk_with_worn_zones
run_case "reports are as blkzone says" reports_are_as_blkzone_says
run_case "an ordinary device is no zoned one" an_ordinary_device_is_no_zoned_one
summary
