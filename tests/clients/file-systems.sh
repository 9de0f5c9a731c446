#!/bin/bash
# file-systems.sh: ext4 and xfs images with tens of thousands of files survive failed members.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../../scripts/array.sh"

FILES=24000

tree() { # FOLDER: makes FILES small files, each with contents of its own, in folders of 300
    local i
    awk -v n="$FILES" -v folder="$1" 'BEGIN {
        for (i = 0; i < n; i++) {
            if (i % 300 == 0) { dir = folder "/d" int(i / 300); system("mkdir -p " dir) }
            name = dir "/f" i
            for (k = 0; k <= i % 40; k++) printf "file %d line %d of this very file\n", i, k >name
            close(name)
        }
    }'
}

survive() { # LEVEL FAILURES IMAGE CHECK…: copies IMAGE in, fails members, reads it back the same; CHECK passes
    local level=$1 failures=$2 image=$3 bytes i; shift 3
    bytes=$(stat -c %s "$image")
    make_members 6 160M
    "$TWILL" create --level "$level" --chunk 64K --name files --assume-clean "${members[@]}"
    serve "${members[@]}"
    nbdcopy --flush --connections=4 --requests=64 "$image" "$uri"
    for ((i = 0; i < failures; i++)); do fail_member "${members[2 * i]}"; done
    nbdcopy --connections=4 --requests=64 "$uri" "$scratch/back"
    cmp -n "$bytes" "$image" "$scratch/back"
    truncate -s "$bytes" "$scratch/back"
    "$@" "$scratch/back" >"$scratch/check" 2>&1 || { tail -n 20 "$scratch/check"; die "$*"; }
    stop_array
}

ext4() { # LEVEL FAILURES
    mkdir "$scratch/tree"; tree "$scratch/tree"
    truncate -s 320M "$scratch/image"
    mke2fs -q -t ext4 -F -m 0 -N $((FILES + 4096)) -d "$scratch/tree" "$scratch/image"
    rm -rf "$scratch/tree"
    survive "$1" "$2" "$scratch/image" e2fsck -fn
}

xfs() { # LEVEL FAILURES
    if ! command -v mkfs.xfs >/dev/null || ! command -v xfs_repair >/dev/null; then skip "xfsprogs is not installed"; fi
    mkdir "$scratch/tree"; tree "$scratch/tree"
    # mkfs.xfs takes the files from a prototype: mode, owner, group; a folder's entries end with $.
    {
        printf '/\n0 0\nd--755 0 0\n'
        find "$scratch/tree" -mindepth 1 -maxdepth 1 -type d | while read -r folder; do
            printf '%s d--755 0 0\n' "${folder##*/}"
            find "$folder" -type f -printf '%f ---644 0 0 %p\n'
            printf '$\n'
        done
        printf '$\n'
    } >"$scratch/proto"
    truncate -s 384M "$scratch/image"
    mkfs.xfs -q -f -p "$scratch/proto" "$scratch/image"
    rm -rf "$scratch/tree"
    survive "$1" "$2" "$scratch/image" xfs_repair -n -f
}

run_case "ext4 with $FILES files, raid5, one failed" ext4 5 1
run_case "xfs with $FILES files, raid6, two failed" xfs 6 2
summary
