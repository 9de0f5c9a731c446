#!/bin/bash
# vm: --mem 3G --mod ublk_drv,xfs,btrfs,ext4 --timeout 1800
# takes: 100 s
# file-systems.sh: file systems and a database run on an array while a member fails and the server is killed. Members are
# files in memory, because mkfs.xfs makes nothing smaller than 300 MiB.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../../scripts/array.sh"
. "$(dirname "${BASH_SOURCE[0]}")/device.sh"
work_in_memory

under_load() { # a member fails, the server is killed, the next one takes over the device; no program sees an error
    local load database
    copy_until_enough & load=$!
    rows 100 & database=$!
    wait_for "a copy" test -d "$scratch/mnt/1"
    fail_member "${members[1]}"
    wait_for "another copy" test -d "$scratch/mnt/2"
    kill_server_under $load serve "${members[@]}"
    : >"$scratch/enough"
    wait $load || die "cp saw it"
    wait $database || die "sqlite3 saw it"
    copies_are_whole $device
    rows_are_whole 100
}

made_whole() { # adds a device for the failed one; at the end parity agrees everywhere
    truncate -s 160M "$scratch/new"
    "$TWILL" add --control "$control" "$scratch/new" >/dev/null
    agrees_everywhere
    no_errors
}

on_top() { # TYPE MAKE CHECK LEVEL COUNT: MAKE and CHECK are commands; the device is their argument
    local type=$1 make=$2 check=$3
    command -v "${make%% *}" >/dev/null && command -v "${check%% *}" >/dev/null || skip "${make%% *} is not installed"
    make_members "$5" 160M
    create "$4" "${members[@]}"
    serve_block "${members[@]}"
    $make $device >"$scratch/made" 2>&1 || die "$make: $(tail -n 3 "$scratch/made")"
    [[ $(blkid -p -s TYPE -o value $device) == "$type" ]] || die "blkid does not see it"
    mkdir -p "$scratch/mnt"
    mount $device "$scratch/mnt"
    cp -r $TREE "$scratch/mnt/gone"
    sync -f "$scratch/mnt"
    rm -r "$scratch/mnt/gone"
    fstrim "$scratch/mnt"
    under_load
    if [[ $type == btrfs ]]; then # btrfs has a checksum of each of its blocks
        btrfs scrub start -B "$scratch/mnt" >"$scratch/scrub" 2>&1 || die "btrfs scrub: $(<"$scratch/scrub")"
        grep -q "no errors found" "$scratch/scrub" || die "btrfs scrub: $(<"$scratch/scrub")"
    fi
    umount "$scratch/mnt"
    $check $device >"$scratch/fsck" 2>&1 || die "$check: $(tail -n 20 "$scratch/fsck")"
    made_whole
    $check $device >"$scratch/fsck" 2>&1 || die "$check after the recovery: $(tail -n 20 "$scratch/fsck")"
    stop_array
}

command -v sqlite3 >/dev/null || skip "sqlite3 is not installed"
run_case "xfs and SQLite on raid5" on_top xfs "mkfs.xfs -f" "xfs_repair -n" 5 4
long_case "btrfs and SQLite on raid6" on_top btrfs "mkfs.btrfs -f" "btrfs check --readonly" 6 5
long_case "ext4 and SQLite on raid10" on_top ext4 "mke2fs -F -t ext4" "e2fsck -fn" 10 4
summary
