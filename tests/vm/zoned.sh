#!/bin/bash
# vm: --mem 3G --zns 4:64M:2M:zoned.max_open=14,zoned.max_active=14,logical_block_size=4096,ms=64 --zns 4:64M:2M:zoned.max_open=14,zoned.max_active=14 --mod null_blk,configfs,ublk_drv,xfs,ext4 --timeout 4000
# takes: 140 s
# zoned.sh: zoned arrays as a whole: made, served, killed under load and stopped, on emulated NVMe namespaces with and without
# metadata, on the kernel's null_blk, and on files with software zones; fio verifies, ext4 and xfs are checked.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../../scripts/array.sh"
. "$(dirname "${BASH_SOURCE[0]}")/device.sh"
work_in_memory

namespaces_with() { # BYTES: sets ${members[@]} to the zoned namespaces with blocks of this size
    local queue drive
    members=()
    for queue in /sys/block/nvme*/queue; do
        if [[ $(<"$queue/logical_block_size") == "$1" ]]; then
            drive=${queue%/queue}
            members+=("/dev/${drive##*/}")
        fi
    done
    ((${#members[@]} == 4)) || die "${#members[@]} drives with blocks of $1 bytes"
}

null_blks() { # sets ${members[@]} to four null_blk devices of 64 zones
    local number folder setting
    members=()
    modprobe -r null_blk 2>/dev/null || true
    modprobe null_blk nr_devices=0
    for number in 0 1 2 3; do
        folder=/sys/kernel/config/nullb/nullb$number
        mkdir "$folder"
        for setting in size=128 blocksize=4096 memory_backed=1 zoned=1 zone_size=2 zone_max_open=14 zone_max_active=14; do
            echo "${setting#*=}" >"$folder/${setting%=*}"
        done
        echo 1 >"$folder/power"
        members+=("/dev/nullb$number")
        wait_for "/dev/nullb$number" test -b "/dev/nullb$number"
    done
}

null_blks_gone() {
    local number
    for number in 0 1 2 3; do rmdir "/sys/kernel/config/nullb/nullb$number"; done
}

array_made() { # WORDS OPTION…: makes a RAID-5 over ${members[@]}; the answer has these words
    local words=$1; shift
    timeout 60 "$TWILL" create --level 5 --name test "$@" "${members[@]}" >"$scratch/made" 2>&1 || die "create: $(<"$scratch/made")"
    grep -q -- "$words" "$scratch/made" || die "no '$words' in: $(<"$scratch/made")"
}

wrote_and_read() { # fio writes and verifies, the server stops, and the next one has the same
    serve "${members[@]}"
    fio_verify written --rw=randwrite --bs=4k --size=4M --numjobs=1 || die "fio"
    nbdcopy "$uri" "$scratch/before" || die "nbdcopy"
    stop_array
    serve "${members[@]}"
    nbdcopy "$uri" "$scratch/after" || die "nbdcopy"
    cmp "$scratch/before" "$scratch/after" || die "a stop changed what is read"
}

killed_under_load() { # ROUNDS ext4|xfs: copies, SQLite and fio on a file system, on the device of a server that is killed, and serves again
    local round load database fio
    dmesg --clear # kernel messages from here on belong to this case
    local -A make=([ext4]="mkfs.ext4 -q -F" [xfs]="mkfs.xfs -q -f --unsupported") check=([ext4]="e2fsck -fn" [xfs]="xfs_repair -n")
    serve_block "${members[@]}"
    ${make[$2]} $device >"$scratch/made" 2>&1 || die "${make[$2]}: $(<"$scratch/made")"
    mkdir -p "$scratch/mnt"
    for ((round = 0; round < $1; round++)); do
        mount $device "$scratch/mnt"
        rm -rf "$scratch"/mnt/[0-9]* "$scratch/enough"
        copy_until_enough & load=$!
        rows 20 & database=$!
        file_fio "$scratch/mnt/fio" 2 & fio=$!
        wait_for "a copy" test -d "$scratch/mnt/0"
        kill_server
        options='' serve_block "${members[@]}"
        : >"$scratch/enough"
        wait $load || die "cp saw the kill: $(dmesg | tail -n 20)"
        wait $database || die "sqlite3 saw the kill: $(dmesg | tail -n 20)"
        wait $fio || die "fio saw the kill: $(dmesg | tail -n 20)"
        copies_are_whole $device
        rows_are_whole 20
        umount "$scratch/mnt"
        ${check[$2]} $device >"$scratch/fsck" 2>&1 || die "${check[$2]}: $(tail -n 20 "$scratch/fsck")"
    done
    no_errors
    stop_array
}

on_namespaces_with_metadata() {
    namespaces_with 4096
    array_made "written by appends, metadata out of band"
    wrote_and_read
    stop_array
    killed_under_load 1 ext4
}

on_namespaces_without_metadata() {
    namespaces_with 512
    array_made "written by appends, metadata in band"
    grep -q "all members are zoned drives" "$scratch/made" || die "it is not said that zoned is implied: $(<"$scratch/made")"
    wrote_and_read
    fail_member "${members[1]}"
    nbdcopy "$uri" "$scratch/degraded" || die "nbdcopy"
    cmp "$scratch/before" "$scratch/degraded" || die "without a member other data is read"
    stop_array
}

in_order_on_null_blk() {
    null_blks
    array_made "written in order, metadata in band"
    wrote_and_read
    stop_array
    killed_under_load 1 ext4
    null_blks_gone
}

wears_out() { # NUMBER readonly|offline CONDITION: a zone of a null_blk, behind the superblock log, that is in this condition
    local start
    start=$(blkzone report "/dev/nullb$1" | awk -F'[ ,]+' -v condition="($3)" 'NR > 2 && !found && index($0, condition) { print $3; found = 1 }')
    [[ -n $start ]] || die "no zone of /dev/nullb$1 is $3: $(blkzone report "/dev/nullb$1")"
    echo $((start)) >"/sys/kernel/config/nullb/nullb$1/zone_$2"
}

# Nothing that a client sees tells of it, now and after a start, and a repair leaves nothing wrong.
zones_wear_out_under_an_array() {
    null_blks
    array_made "written in order"
    serve "${members[@]}"
    fio_verify filled --rw=randwrite --bs=4k --size=12M --numjobs=1 || die "fio"
    nbdcopy "$uri" "$scratch/before" || die "nbdcopy"
    wears_out 1 offline fu
    nbdcopy "$uri" "$scratch/after" || die "nbdcopy"
    cmp "$scratch/before" "$scratch/after" || die "an offline zone changed what is read"
    wears_out 2 readonly oi
    fio_verify more --rw=randwrite --bs=4k --offset=16M --size=8M --numjobs=1 || die "fio"
    nbdcopy "$uri" "$scratch/before" || die "nbdcopy"
    [[ $("$TWILL" status --json --control "$control" | jq -r ".arrays[0].state") =~ ^(clean|active|degraded)$ ]] || die "$("$TWILL" status --control "$control")"
    "$TWILL" repair --control "$control" >"$scratch/repair" 2>&1 || die "repair: $(<"$scratch/repair")"
    "$TWILL" check --control "$control" >"$scratch/check" 2>&1 || die "check: $(<"$scratch/check")"
    stop_array
    serve "${members[@]}"
    nbdcopy "$uri" "$scratch/after" || die "nbdcopy"
    cmp "$scratch/before" "$scratch/after" || die "a stop changed what is read"
    # A start meets worn zones that it has not seen in that state.
    kill_server
    wears_out 3 offline fu
    wears_out 0 readonly fu
    serve "${members[@]}"
    nbdcopy "$uri" "$scratch/after" || die "nbdcopy"
    cmp "$scratch/before" "$scratch/after" || die "worn zones at a start changed what is read"
    "$TWILL" repair --control "$control" >"$scratch/repair" 2>&1 || die "repair: $(<"$scratch/repair")"
    "$TWILL" check --control "$control" >"$scratch/check" 2>&1 || die "check: $(<"$scratch/check")"
    stop_array
    null_blks_gone
}

a_drive_that_holds_something_needs_force() {
    local code=0
    null_blks
    dd if=/dev/urandom of="${members[2]}" bs=4K count=3 oflag=direct status=none
    blkzone report "${members[2]}" >"$scratch/zones"
    "$TWILL" create --level 5 "${members[@]}" >"$scratch/made" 2>&1 || code=$?
    [[ $code == 3 ]] || die "code $code: $(<"$scratch/made")"
    blkzone report "${members[2]}" | diff - "$scratch/zones" >&2 || die "a refusal changed zones"
    array_made "1 zone held something and were emptied" --force
    null_blks_gone
}

xfs_on_files() {
    make_members 4 512M
    array_made "of software" --metadata zoned --zone-size 4M
    killed_under_load 1 xfs
    serve_block "${members[@]}"
    mount $device "$scratch/mnt"
    cp -r $TREE "$scratch/mnt/trimmed"
    rm -r "$scratch/mnt/trimmed"
    fstrim "$scratch/mnt"
    copies_are_whole $device
    umount "$scratch/mnt"
    xfs_repair -n $device >"$scratch/fsck" 2>&1 || die "xfs_repair: $(tail -n 20 "$scratch/fsck")"
    stop_array
}

many_kills() { namespaces_with 4096; array_made "appends" --force; killed_under_load 8 ext4; }

many_kills_in_software_zones() { # ext4|xfs
    make_members 4 256M
    array_made "of software" --metadata zoned --zone-size 2M --open-small 2 --open-large 2
    killed_under_load 50 "$1"
}

run_case "appends with metadata: fio, ext4, kill -9" on_namespaces_with_metadata
run_case "appends without metadata: fio, a member fails" on_namespaces_without_metadata
run_case "null_blk in order: fio, ext4, kill -9" in_order_on_null_blk
run_case "null_blk: zones turn read-only and offline" zones_wear_out_under_an_array
run_case "a drive that holds something needs --force" a_drive_that_holds_something_needs_force
run_case "xfs on files with software zones, kill -9" xfs_on_files
long_case "ext4 over appends through eight kills" many_kills
CASE_SECONDS=1500 long_case "ext4 over software zones through fifty kills" many_kills_in_software_zones ext4
CASE_SECONDS=1500 long_case "xfs over software zones through fifty kills" many_kills_in_software_zones xfs
summary
