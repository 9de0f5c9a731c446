#!/bin/bash
# vm: --mem 3G --mod raid1 --timeout 1500
# takes: 110 s
# signatures.sh [KIND…|--all]: `create --force` and `add --force` over drives that hold something. Afterwards wipefs lists nothing outside the data
# area but the array's superblock, gdisk finds no partition table there, and what stays inside was named, with its place. Without
# arguments three kinds: those with something at both ends of the drive, and md's own.
set -euo pipefail
RAM_MIB=340 # mkfs.xfs makes nothing smaller
RAM_DRIVES=4
. "$(dirname "${BASH_SOURCE[0]}")/md.sh"
cp "$TWILL" /run/twill && TWILL=/run/twill

fresh_members() { # N: drives of zeroes; loading the module again is faster than writing them
    local i
    modprobe -r brd
    modprobe brd rd_nr=4 rd_size=$((RAM_MIB << 10))
    members=()
    for ((i = 0; i < $1; i++)); do members+=("/dev/ram$i"); done
}

needs() { # PROGRAM PACKAGE
    command -v "$1" >/dev/null || skip "$1 is not installed: apt-get install $2"
}

make_gpt() { needs sgdisk gdisk; sgdisk --clear --new=1:0:0 --new=2:0:0 "$1" >/dev/null 2>&1 || sgdisk --clear --new=1:0:0 "$1" >/dev/null; }
make_dos() { needs sfdisk fdisk; echo 'label: dos
,32M,83' | sfdisk --quiet --no-reread "$1"; }
make_ext4() { mke2fs -q -F -t ext4 "$1"; }
make_xfs() { needs mkfs.xfs xfsprogs; mkfs.xfs -q -f "$1"; }
make_btrfs() { needs mkfs.btrfs btrfs-progs; mkfs.btrfs -q -f "$1" >/dev/null; }
make_swap() { needs mkswap util-linux; mkswap "$1" >/dev/null 2>&1; }
make_lvm() { needs pvcreate lvm2; pvcreate --yes "$1" >/dev/null; }
make_zfs() { # without its tools: the uberblocks of its four labels, two at each end
    local size at label
    size=$(blockdev --getsize64 "$1")
    for label in 0 $((256 << 10)) $((size - (512 << 10))) $((size - (256 << 10))); do
        for ((at = label + (128 << 10); at < label + (160 << 10); at += 1024)); do
            printf '\x0c\xb1\xba\x00\x00\x00\x00\x00' | dd of="$1" bs=8 seek=$((at / 8)) conv=notrunc status=none
        done
    done
}
make_md() { # METADATA DRIVE
    mdadm --quiet --create /dev/md0 --run --metadata="$1" --level=1 --raid-devices=2 "$2" missing </dev/null
    mdadm --quiet --stop /dev/md0
}
make_md090() { make_md 0.90 "$1"; }
make_md10() { make_md 1.0 "$1"; }
make_md12() { make_md 1.2 "$1"; }

data_area() { # MEMBER: sets $first and $end, in bytes
    local superblock
    superblock=$("$TWILL" examine --json "$1" | jq '.members[0].superblock')
    first=$(jq .data_offset_bytes <<<"$superblock")
    end=$((first + $(jq .used_member_bytes <<<"$superblock")))
}

clean_outside() { # MEMBER SAID: the words of the program
    local first end offset kind sectors
    data_area "$1"
    sectors=$(grep -o 'at byte [0-9]*' <<<"$2" | awk '{ print int($3 / 512) }' || true)
    while IFS=, read -r offset kind; do
        offset=$((offset))
        [[ $kind != linux_raid_member || $offset != 4096 ]] || continue
        ((offset >= first && offset < end)) || die "$kind is left at byte $offset, outside the data area from $first to $end: $2"
        grep -qx $((offset / 512)) <<<"$sectors" || die "$kind stays at byte $offset and is not named: $2"
    done < <(wipefs --no-act --parsable --output OFFSET,TYPE "$1" | grep -v '^#' || true)
}

no_table() { # MEMBER: its data area ends long before the drive
    needs gdisk gdisk
    local scan
    scan=$(gdisk -l "$1" </dev/null 2>&1 || true)
    ! grep -E '^ +(MBR|BSD|APM|GPT): ' <<<"$scan" | grep -v 'not present' || die "gdisk finds a table: $scan"
    ! grep -qi 'backup' <<<"$scan" || die "gdisk finds a backup: $scan"
}

holds() { wipefs --no-act --parsable "$1" | grep -qv '^#' || die "wipefs finds nothing on the new $2"; }

created_over() { # KIND OPTION…
    local kind=$1 said; shift
    fresh_members 3
    "make_$kind" "${members[0]}"
    holds "${members[0]}" "$kind"
    ! "$TWILL" create --level 5 --name old --assume-clean "$@" "${members[@]}" 2>"$scratch/refusal" || die "taken without --force"
    grep -q "${members[0]}: has " "$scratch/refusal" || die "not named: $(<"$scratch/refusal")"
    said=$("$TWILL" create --force --level 5 --name old --assume-clean "$@" "${members[@]}")
    clean_outside "${members[0]}" "$said"
    [[ $* != *--size* ]] || no_table "${members[0]}"
}

added_over() { # KIND
    local kind=$1 said
    fresh_members 4
    "$TWILL" create --force --level 5 --name old --assume-clean --size 128M "${members[@]:1}" >/dev/null
    "make_$kind" "${members[0]}"
    holds "${members[0]}" "$kind"
    serve "${members[@]:1}"
    ! "$TWILL" add --control "$control" "${members[0]}" 2>"$scratch/refusal" || die "taken without --force"
    grep -q "${members[0]}: has " "$scratch/refusal" || die "not named: $(<"$scratch/refusal")"
    said=$("$TWILL" add --force --control "$control" "${members[0]}")
    stop_array
    clean_outside "${members[0]}" "$said"
    no_table "${members[0]}"
}

all=(gpt dos ext4 xfs btrfs swap lvm zfs md090 md10 md12)
(($#)) || set -- gpt zfs md12
[[ $1 != --all ]] || set -- "${all[@]}"
for kind; do
    run_case "create over $kind" created_over $kind
    run_case "create over $kind, on a part of the drive" created_over $kind --size 128M
    run_case "add over $kind" added_over $kind
done
summary
