# device.sh: what the kernel tests of block devices share; they source it. It makes an array, runs fio with verification, and
# checks that no request and no file system saw an error. The device is $device.

work_in_memory() { # members, the program and the files of $TREE are in memory; the device is the first block device
    export TWILL_SCRATCH=/run
    device=$BLOCK_DEVICE
    # Programs start, and files are read, much faster from memory than from the host's file system.
    cp "$TWILL" /run/twill && TWILL=/run/twill
    TREE=/run/tree
    cp -r "$root/docs" $TREE
}

create() { # LEVEL MEMBER…
    local level=$1; shift
    dmesg --clear # kernel messages from here on belong to this case
    "$TWILL" create --level "$level" --chunk 64K --name vm --assume-clean "$@" >/dev/null
}

made() { # LEVEL COUNT: makes an array of ram drives and serves it as a block device
    ram_members "$2"
    create "$1" "${members[@]}"
    serve_block "${members[@]}"
}

device_fio() { # NAME OPTION…: fio writes and verifies
    local name=$1; shift
    (cd "$scratch" && fio --name="$name" --filename="$device" --direct=1 --ioengine=io_uring --verify=crc32c --verify_fatal=1 --verify_state_save=0 \
        --iodepth=32 --group_reporting --thread --randrepeat=0 "$@" >"$scratch/$name.log" 2>&1 </dev/null) ||
        { tail -n 20 "$scratch/$name.log"; return 1; }
}

discards_and_zeroes() { # MIB DISCARDED ZEROED: of MIB of data so many MiB are discarded, so many and a block made zero; the rest stays
    local mib=$1 discarded=$(($2 << 20)) zeroed=$(($3 << 20 | 4096)) from=$((($2 + 2) << 20))
    dd if=$RANDOM_DATA of=$device bs=1M count="$mib" oflag=direct status=none
    blkdiscard --offset $((1 << 20)) --length $discarded $device
    blkdiscard -z --offset $from --length $zeroed $device
    cmp -n $((1 << 20)) $RANDOM_DATA $device || die "the discard went too far"
    cmp -n $zeroed -i $from:0 $device /dev/zero || die "not zero"
    cmp -n $discarded -i $((from + zeroed)) $RANDOM_DATA $device || die "the zeroes went too far"
}

statements() { # COUNT: transactions, one after the other; each prints its number when it is durable
    local i
    for ((i = 1; i <= $1; i++)); do echo "INSERT INTO t VALUES ($i, hex(randomblob(2000))); SELECT $i;"; done
}

rows() { # COUNT: a new database on the file system, and so many transactions
    rm -f "$scratch"/mnt/db*
    sqlite3 "$scratch/mnt/db" 'CREATE TABLE t (number INTEGER PRIMARY KEY, contents TEXT)' || return 1
    statements "$1" | sqlite3 -bail -cmd 'PRAGMA synchronous=EXTRA' "$scratch/mnt/db" >"$scratch/committed"
}

rows_are_whole() { # COUNT
    [[ $(tail -n 1 "$scratch/committed") == "$1" ]] || die "the last row committed is $(tail -n 1 "$scratch/committed")"
    [[ $(sqlite3 "$scratch/mnt/db" 'PRAGMA integrity_check; SELECT count(*) FROM t' | xargs) == "ok $1" ]] || die "SQLite finds other rows"
}

file_fio() { # FILE SECONDS: fio writes at random to a file, and verifies while it does and in the end
    fio --name=file --filename="$1" --size=8M --direct=1 --ioengine=io_uring --iodepth=16 --rw=randwrite --bs=4k --time_based --runtime="$2" \
        --verify=crc32c --verify_fatal=1 --verify_state_save=0 --verify_backlog=256 --randrepeat=0 --thread >"$scratch/fio.log" 2>&1 </dev/null ||
        { tail -n 20 "$scratch/fio.log"; return 1; }
}

kill_server_under() { # LOAD COMMAND…: the server is killed under LOAD, a process; COMMAND brings one back
    local load=$1; shift
    kill_server
    sleep 1 # the load runs into a device without a server
    kill -0 "$load" || die "the load has ended"
    "$@"
}

killed_under_a_file_system() { # COMMAND…: a file system is written while its server is killed; COMMAND brings one back
    mke2fs -q -t ext4 $device
    mkdir -p "$scratch/mnt"
    mount $device "$scratch/mnt"
    local load
    copy_until_enough & load=$!
    wait_for "two copies" test -d "$scratch/mnt/2"
    kill_server_under $load "$@"
    : >"$scratch/enough"
    wait $load || die "a program saw it"
    copies_are_whole $device
    umount "$scratch/mnt"
    e2fsck -fn $device >"$scratch/fsck" 2>&1 || die "e2fsck: $(<"$scratch/fsck")"
}

kernel_saw_no_errors() { # since create
    ! dmesg | grep -E "I/O error|EXT4-fs error|XFS .*(error|orrupt)|BTRFS (error|critical)|Buffer I/O" || die "the kernel saw errors"
}

no_errors() { # no request to the block device failed, and the kernel logged no error
    [[ $("$TWILL" detail --json --control "$control" | jq .block_device.errors) == 0 ]] || die "requests failed"
    kernel_saw_no_errors
}
