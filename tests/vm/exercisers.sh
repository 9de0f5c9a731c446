#!/bin/bash
# vm: --mem 3G --mod ublk_drv,raid456,xfs,btrfs,ext4 --timeout 1200
# takes: 90 s
# exercisers.sh: programs that others wrote to break file systems run on an array: fsx, which knows what each byte must be,
# and stress-ng's file system stressors, which check their own data.
set -euo pipefail
RAM_MIB=120
. "$(dirname "${BASH_SOURCE[0]}")/md.sh"
. "$(dirname "${BASH_SOURCE[0]}")/device.sh"
device=$BLOCK_DEVICE
# ./test installs it here.
fsx=$(command -v fsx || echo "$(dirname "${XTASK:-/}")/../tools/bin/fsx")

agrees() { # parity agrees everywhere
    agrees_everywhere
    no_errors
    stop_array
}

mounted() { # MAKE: makes and mounts a new file system
    $1 $device >"$scratch/made" 2>&1 || die "$1: $(tail -n 3 "$scratch/made")"
    mkdir -p "$scratch/mnt"
    mount $device "$scratch/mnt"
}

unmounted() { # CHECK: unmounts the file system; CHECK finds no error
    umount "$scratch/mnt"
    $1 $device >"$scratch/fsck" 2>&1 || die "$1: $(tail -n 20 "$scratch/fsck")"
}

busy_or_ended() { (($(writes ublkb0) >= $1)) || ended "$2"; } # WRITES PROCESS

has_fsx() { [[ -x $fsx ]] || skip "fsx is not installed"; }

# No sendfile: after one that failed or was short, fsx waits for ever for the bytes that were not sent.
fsx_settings() { # LINE…: fsx's settings, these lines first
    printf '%s\n' "$@" '[opsize]' 'max = 200000' "align = ${align:-1}" '[weights]' 'read = 20' 'write = 20' 'mapread = 10' 'mapwrite = 10' \
        'invalidate = 2' 'fsync = 2' 'fdatasync = 2' 'posix_fadvise = 4'
}

run_fsx() { # NAME SEED OPERATIONS FILE: with $scratch/fsx.toml
    mkdir -p "$scratch/fsx-$1"
    "$fsx" -f "$scratch/fsx.toml" -S "$2" -N "$3" -P "$scratch/fsx-$1" "$4" >"$scratch/fsx-$1.log" 2>&1
}

fsx_says() { die "fsx, seed $2: $(tail -n 25 "$scratch/fsx-$1.log")"; }

on_the_device() { # under fsx a member fails and a new one takes its slot
    has_fsx
    made 5 4
    align=4096 fsx_settings 'flen = 8388608' 'nosizechecks = true' 'blockmode = true' >"$scratch/fsx.toml"
    sed -i 's/^\(mapread\|mapwrite\) = .*/\1 = 5/; $a close_open = 0\ntruncate = 0\npunch_hole = 3' "$scratch/fsx.toml"
    local seed=$RANDOM
    echo "seed $seed"
    run_fsx device $seed 4000 $device & local load=$!
    wait_for "writes of fsx" busy_or_ended $(($(writes ublkb0) + 100)) $load
    fail_member "${members[1]}"
    wait_for "more writes of fsx" busy_or_ended $(($(writes ublkb0) + 100)) $load
    "$TWILL" add --control "$control" /dev/ram5 >/dev/null
    wait $load || fsx_says device $seed
    agrees
    md_assemble "${members[0]}" "${members[2]}" "${members[3]}" /dev/ram5
    md_check
    md_stop
}

on_files() { # TYPE MAKE CHECK LEVEL COUNT: fsx on three files at once
    has_fsx
    local type=$1 make=$2 check=$3 i start=$RANDOM
    command -v "${make%% *}" >/dev/null || skip "${make%% *} is not installed"
    made "$4" "$5"
    echo "seeds from $start"
    mounted "$make"
    fsx_settings 'flen = 2097152' >"$scratch/fsx.toml"
    printf '%s\n' 'truncate = 5' 'close_open = 2' 'punch_hole = 5' 'posix_fallocate = 5' 'copy_file_range = 5' >>"$scratch/fsx.toml"
    [[ $type != btrfs ]] || sed -i '/^posix_fallocate/d' "$scratch/fsx.toml" # fsx refuses posix_fallocate on btrfs
    local -a loads=()
    for i in 1 2 3; do run_fsx $i $((start + i)) 1500 "$scratch/mnt/file$i" & loads+=($!); done
    for i in 1 2 3; do wait "${loads[i - 1]}" || fsx_says $i $((start + i)); done
    unmounted "$check"
    agrees
}

# The stressors run at the same time, each on its own files; with --verify each reads back what it wrote.
STRESSORS=(access chdir chmod dentry dir dirdeep fallocate fiemap file-ioctl filename flock fpunch fstat hdd iomix link locka mknod
    open readahead rename revio seek sync-file symlink utime xattr)

stress() { # FOLDER: status 0 if every stressor verified its data
    local name
    local -a words=()
    for name in "${STRESSORS[@]}"; do words+=("--$name" 1); done
    timeout 300 stress-ng --temp-path "$1" --verify --timeout 20 --oom-avoid "${words[@]}" --chdir-dirs 64 --dirdeep-dirs 2 --dentries 128 --fallocate-bytes 4M \
        --hdd-bytes 4M --iomix-bytes 4M --readahead-bytes 4M --seek-size 2M --sync-file-bytes 4M \
        >"$scratch/stress" 2>&1
}

stressed() { # MAKE CHECK: a member fails under the stressors
    local make=$1 check=$2 code=0
    command -v stress-ng >/dev/null || skip "stress-ng is not installed"
    made 6 5
    mounted "$make"
    stress "$scratch/mnt" & local load=$!
    wait_for "writes of stress-ng" busy_or_ended $(($(writes ublkb0) + 100)) $load
    fail_member "${members[2]}"
    wait $load || code=$?
    ((code == 0)) || die "stress-ng: status $code: $(grep -vE "dispatching|setting to" "$scratch/stress" | tail -n 40)"
    unmounted "$check"
    no_errors
    stop_array
}

run_case "fsx on raid5, a member lost and replaced" on_the_device
long_case "fsx in files, ext4 on raid6" on_files ext4 "mke2fs -q -F -t ext4" "e2fsck -fn" 6 5
long_case "fsx in files, xfs on raid5" on_files xfs "mkfs.xfs -q -f" "xfs_repair -n" 5 6
long_case "fsx in files, btrfs on raid10" on_files btrfs "mkfs.btrfs -q -f" "btrfs check --readonly" 10 4
run_case "stress-ng, ext4 on raid6 that loses a member" stressed "mke2fs -q -F -t ext4" "e2fsck -fn"
summary
