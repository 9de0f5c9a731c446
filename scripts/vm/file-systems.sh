# file-systems.sh: file systems that know zones, and ext4 on zoned arrays, each over four zoned devices of its own; parts of
# `cargo xtask vm bench-zoned` source it, behind bench-zoned.sh.
#
#   start PROGRAM                makes and mounts one of ${FILE_SYSTEMS[@]}, with ${SETTINGS[@]} of null_blk; ${programs[@]} has those that run
#   fill_file PROGRAM            its file, all written, which takes FULL_PERCENT of its room
#   on_file PROGRAM OPTION…      a run of fio on that file
#   stop PROGRAM                 takes it away
#
# ${folder[PROGRAM]} is where it is mounted, ${members[PROGRAM]} its devices.

MEMBERS=4 MEMBER_MIB=256 ZONE_MIB=4 FULL_PERCENT=60
FILE_SYSTEMS=(btrfs-single btrfs-raid1 f2fs-single twill-0 twill-5)
SETTINGS=()
programs=() # those that run here
declare -A members folder bytes

start() { # PROGRAM: makes and mounts it, or says why it does not run here
    local program=$1
    drives "$program-" $MEMBERS size=$MEMBER_MIB zoned=1 zone_size=$ZONE_MIB "${SETTINGS[@]}"
    members[$program]="${made[*]}" folder[$program]=/run/$program
    mkdir -p "/run/$program"
    if ! "mount_${program%%-*}" "${program#*-}" "/run/$program" >/run/mount.log 2>&1; then
        not_run "$program" "$(grep -im1 error /run/mount.log || tail -n 1 /run/mount.log)"
        drives_gone "$program-"
        return 1
    fi
    [[ $program != f2fs-* ]] || members[$program]+=" /dev/f2fs-meta-0"
    programs+=("$program")
}

mount_btrfs() { # PROFILE FOLDER
    modprobe btrfs && mkfs.btrfs -q -f -O zoned -d "$1" -m "$1" "${made[@]}" && mount -t btrfs "${made[0]}" "$2"
}

mount_f2fs() { # NAME FOLDER
    local zoned=("${made[@]/#/-c}")
    modprobe f2fs || return
    drives f2fs-meta- 1 size=64 "${SETTINGS[@]}"
    mkfs.f2fs -q -f -m "${zoned[@]}" "${made[0]}" && mount -t f2fs "${made[0]}" "$2"
}

mount_twill() { # LEVEL FOLDER
    zoned_array "$1" --level "$1" -- "${made[@]}"
    mke2fs -q -t ext4 -E lazy_itable_init=0,lazy_journal_init=0 "/dev/ublkb$1" && mount -t ext4 "/dev/ublkb$1" "$2"
}

fill_file() { # PROGRAM: its file, all written
    local program=$1 room
    room=$(df --output=avail -B1 "/run/$program" | tail -n 1)
    bytes[$program]=$((room * FULL_PERCENT / 100 >> 20 << 20))
    on_file "$program" --rw=write --bs=1m --iodepth=4 --end_fsync=1 >/dev/null || fail "cannot fill $program: $(tail -n 3 /run/fio.err)"
}

on_file() { # PROGRAM OPTION…
    local program=$1; shift
    job "${folder[$program]}/file" --size="${bytes[$program]}" --fallocate=none "$@"
}

stop() { # PROGRAM
    umount "${folder[$1]}"
    [[ $1 != twill-* ]] || stop_zoned "${1#twill-}"
    drives_gone "$1-"
    [[ $1 != f2fs-* ]] || drives_gone f2fs-meta-
}
