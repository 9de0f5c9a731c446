# device.sh: what the kernel tests of block devices share; they source it. It makes an array, runs fio with verification, and
# checks that no request and no file system saw an error. The device is $device.

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

kernel_saw_no_errors() { # since `create`
    ! dmesg | grep -E "I/O error|EXT4-fs error|XFS .*(error|orrupt)|BTRFS (error|critical)|Buffer I/O" || die "the kernel saw errors"
}

no_errors() { # no request to the block device failed, and the kernel logged no error
    [[ $("$TWILL" detail --json --control "$control" | jq .block_device.errors) == 0 ]] || die "requests failed"
    kernel_saw_no_errors
}
