#!/bin/bash
# vm: --mem 3G --mod raid456,nbd,ublk_drv,dm-mod,ext4,xfs --timeout 7200
# takes: 160 s
# power-cuts.sh [twill|zoned|md CUTS SEED]: an array on drives with a volatile write cache takes random writes on one half and
# files on the other, of ext4 and xfs in turns of ten cuts; then the power is cut and comes back, again and again. Without
# arguments: two cuts of twill, one of a zoned array in zones of software, and one of md.
#
# After each cut the array is assembled and resynced, e2fsck or xfs_repair finds no error, each file that was flushed has its
# contents, each block holds at least what was flushed, and parity agrees everywhere. The next round continues with the same
# array, so it ages through all cuts.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../../scripts/array.sh"
export TWILL_SCRATCH=/run
cp "$TWILL" /run/twill && TWILL=/run/twill
cp "$XTASK" /run/xtask && XTASK=/run/xtask
# The machine ends with the script: after a failure there is no need to clean up, and cleaning up might hang.
finish() {
    local code=$?
    trap - EXIT
    if ((code != 0)) && [[ -s $scratch/server.log ]]; then tail -n 20 "$scratch/server.log" >&2; fi
    exit $code
}
COUNT=5 LEVEL=6 FILES=/run/files
mkdir -p $FILES

drives_begin() { # MIB: each case has sockets of its own: those of the previous drives may still exist
    drives_socket=$scratch/drives.sock power=$scratch/power.sock
    "$XTASK" drives serve --count $COUNT --mib "$1" --socket "$drives_socket" --control "$power" >/run/drives.log 2>&1 & drives=$!
    wait_for "an answer of the drives" drives_answer_or_ended
    ! ended $drives || die "the drives do not answer: $(cat /run/drives.log)"
}
drives_answer_or_ended() { ended $drives || "$XTASK" drives ready --control "$power" >/dev/null 2>&1; }

drives_end() {
    kill $drives
    wait $drives 2>/dev/null || true
}

plug() {
    local i
    members=()
    for ((i = 0; i < COUNT; i++)); do
        nbd-client -unix "$drives_socket" /dev/nbd$i -N drive$i -b 4096 >/run/nbd-client 2>&1 || die "nbd-client: $(cat /run/nbd-client)"
        members+=(/dev/nbd$i)
    done
    for ((i = 0; i < COUNT; i++)); do wait_for "the size of /dev/nbd$i" has_a_size /dev/nbd$i; done
}

unplug() {
    local i
    for ((i = 0; i < COUNT; i++)); do nbd-client -d /dev/nbd$i >/dev/null 2>&1 || die "nbd-client -d"; done
    for ((i = 0; i < COUNT; i++)); do wait_for "the end of /dev/nbd$i" nbd_is_unplugged nbd$i; done
}
nbd_is_unplugged() { [[ ! -e /sys/block/$1/pid ]]; }

# --- twill, with md's format and zoned, and md

twill_make() { "$TWILL" create --level $LEVEL --chunk 64K --name cuts --assume-clean "${members[@]}" >/dev/null; }
zoned_make() { "$TWILL" create --metadata zoned --zone-size 1M --level $LEVEL --name cuts "${members[@]}" >/dev/null; }
md_make() {
    mdadm --quiet --create /dev/md0 --run --level=$LEVEL --chunk=64 --raid-devices=$COUNT --bitmap=none --assume-clean --data-offset=1M "${members[@]}" 2>/run/mdadm </dev/null || die "$(cat /run/mdadm)"
    mdadm --quiet --stop /dev/md0
}

twill_up() {
    serve_block "${members[@]}"
    device=$BLOCK_DEVICE
}
zoned_up() { twill_up; }
md_up() {
    mdadm --quiet --assemble --run /dev/md0 "${members[@]}" || die "mdadm --assemble"
    mdadm --quiet --readwrite /dev/md0 2>/dev/null || true
    device=/dev/md0
}

twill_agrees() { agrees_everywhere; }
zoned_agrees() { agrees_everywhere; }
md_agrees() {
    local md=/sys/block/md0/md
    mdadm --quiet --wait /dev/md0 || true
    while [[ $(<$md/sync_action) != idle ]]; do sleep 0.1; done
    echo check >$md/sync_action
    mdadm --quiet --wait /dev/md0 || true
    while [[ $(<$md/sync_action) != idle ]]; do sleep 0.1; done
    [[ $(<$md/mismatch_cnt) == 0 ]] || die "md finds mismatch_cnt $(<$md/mismatch_cnt)"
}

twill_down() { stop_array; }
zoned_down() { stop_array; }
md_down() { mdadm --quiet --stop /dev/md0 || die "mdadm --stop"; }

# --- the load on the array

halves() {
    local half=$(($(blockdev --getsz $device) / 8 / 2 * 8))
    echo "0 $half linear $device 0" | dmsetup create raw
    echo "0 $half linear $device $half" | dmsetup create files
}
whole() { dmsetup remove --retry raw && dmsetup remove --retry files || die "dmsetup remove: $(dmsetup info -c)"; }

blocks() { local action=$1; shift; "$XTASK" blocks "$action" --device /dev/mapper/raw --state "$state" --seed "$seed" "$@"; }

first_time() {
    "${who}_make"
    "${who}_up"
    halves
    blocks fill >/dev/null
    whole
}

TYPES=(ext4 xfs)
declare -A MAKE=([ext4]="mkfs.ext4 -q -F" [xfs]="mkfs.xfs -q -f --unsupported") CHECK=([ext4]="e2fsck -fn" [xfs]="xfs_repair -n")
TURN=10 # cuts that a file system ages through

load_until_cut() { # CUT: runs all loads for a random time; then cuts the power
    if (((cut - first) % TURN == 0)); then
        type=${TYPES[(cut - first) / TURN % ${#TYPES[@]}]}
        ${MAKE[$type]} /dev/mapper/files >/run/made 2>&1 || die "${MAKE[$type]}: $(tail -n 3 /run/made)"
    fi
    mount /dev/mapper/files $FILES
    sqlite3 $FILES/db 'CREATE TABLE t (number INTEGER PRIMARY KEY, contents TEXT)' && sync -f $FILES
    "$XTASK" blocks write --device /dev/mapper/raw --state "$state" --seed "$seed" --jobs 6 --largest 40 --flush-every 40 >/run/raw.log 2>&1 & local raw=$!
    "$XTASK" files write --folder $FILES --list "$list" --seed "$1" >/run/files.log 2>&1 & local files=$!
    stdbuf -oL sqlite3 -cmd 'PRAGMA synchronous=EXTRA' $FILES/db < <(statements 2>/dev/null) >>"$committed" 2>/dev/null & local rows=$!
    sleep "$(awk -v r=$RANDOM 'BEGIN { printf "%.2f", 0.3 + r / 32768 * 2 }')"
    kill -0 $raw && kill -0 $files || die "a load ended by itself: $(cat /run/raw.log /run/files.log)"
    answer=$("$XTASK" drives cut --control "$power" --seed "$1" --copy "$state:$state.cut" --copy "$list:$list.cut" --copy "$committed:$committed.cut") || die "cut: $answer"
    kill -9 $raw $files $rows
    wait $raw $files $rows 2>/dev/null || true
    umount $FILES
    mv "$state.cut" "$state"
    mv "$list.cut" "$list"
    mv "$committed.cut" "$committed"
}

statements() { # transactions, one after the other; each prints its number when it is durable
    local i
    for ((i = 1; ; i++)); do echo "INSERT INTO t VALUES ($i, hex(randomblob(500))); SELECT $i;"; done
}

rows_check() {
    local last integrity count most
    last=$(tail -n 1 "$committed")
    IFS='|' read -r integrity count most < <(sqlite3 $FILES/db 'SELECT (SELECT integrity_check FROM pragma_integrity_check LIMIT 1), (SELECT count(*) FROM t), (SELECT coalesce(max(number), 0) FROM t)' 2>&1)
    [[ $integrity == ok && $count == "$most" ]] && ((most >= ${last:-0})) ||
        die "SQLite: integrity $integrity, $count rows up to $most, ${last:-0} were committed"
    rows_seen=${last:-0}
}

after_the_cut() { # CUT
    "${who}_up"
    halves
    blocks check --least flushed >/run/raw.log 2>&1 || die "blocks: $(tail -n 6 /run/raw.log)"
    mount -o ro /dev/mapper/files $FILES || die "mount: $(dmesg | tail -n 3)" # only replays its journal
    umount $FILES
    ${CHECK[$type]} /dev/mapper/files >/run/fsck 2>&1 || die "${CHECK[$type]}: $(cat /run/fsck)"
    mount /dev/mapper/files $FILES
    "$XTASK" files check --folder $FILES --list "$list" --seed "$1" >/run/files.log 2>&1 || die "files: $(tail -n 6 /run/files.log)"
    rows_check
    find $FILES -type f -delete # makes room for the next round, which begins with an empty list
    umount $FILES
    "${who}_agrees"
}

rounds() { # twill|zoned|md CUTS SEED
    who=$1 seed=$3
    local cut first=$3 type answer start flushed mib=32
    [[ $who != zoned ]] || mib=64 # of which a third is reserve, metadata and zones in use
    state=/run/raw.state list=/run/files.list committed=/run/rows rows_seen=0
    drives_begin $mib
    plug
    first_time
    for ((cut = first; cut < first + $2; cut++)); do
        start=$SECONDS
        : >$list
        : >$committed
        halves
        load_until_cut $cut
        whole
        "${who}_down"
        unplug
        "$XTASK" drives power-on --control "$power" >/dev/null || die "power-on"
        plug
        after_the_cut $cut
        whole
        flushed=$(sed -n 's/ flushed files.*//p' /run/files.log | tail -n 1)
        say "cut $cut, $type: ${answer#ok }, $flushed flushed files, $rows_seen committed rows ($((SECONDS - start)) s)"
        jq -nc --arg who "$who" --argjson seed $cut --arg lost "${answer#ok }" --argjson files "${flushed:-0}" --argjson rows "$rows_seen" \
            '{who: $who, seed: $seed, lost: $lost, files: $files, rows: $rows}' | sed 's/^/JSON /'
    done
    "${who}_down"
    unplug
    drives_end
}

jq -nc --arg kernel "$(uname -r)" '{kernel: $kernel}' | sed 's/^/JSON /'
if (($#)); then
    begin
    rounds "$@"
else
    run_case "two cuts, twill" rounds twill 2 1
    run_case "a cut, zoned" rounds zoned 1 1
    long_case "a cut, md" rounds md 1 1
    summary
fi
