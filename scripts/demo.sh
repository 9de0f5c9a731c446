#!/bin/bash
# demo.sh [--force] [MEMBER…]: Twill's main use, end to end, on six member files in a temporary folder or on MEMBERs.
#
# Makes a RAID-5, exports it over NBD and copies in a file system image with real files. fio writes and verifies beside the
# image while a member fails; then the script reads every byte back from the degraded array and compares it. Status 0 means
# that every step held.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/array.sh"

: "${TWILL:=$root/target/release/twill}"
force=()
if [[ ${1-} == --force ]]; then force=(--force); shift; fi

step=0
next() { step=$((step + 1)); say "[$step/8] $*"; }
seconds() { date +%s.%N; }
rate() { awk -v bytes="$1" -v from="$2" -v to="$3" 'BEGIN { printf "%.0f MB/s", bytes / 1e6 / (to - from) }'; }

# At most 160 MB of real files, from folders that every machine has.
real_files() { # FOLDER
    local place
    for place in /usr/include /usr/share/doc /usr/share /usr/lib; do
        [[ -d $place ]] && find "$place" -xdev -type f -size -2M -readable -printf '%s\t%p\n' 2>/dev/null
    done | sort -u -k 2 | awk -F '\t' '{ bytes += $1 + 4096 } bytes > 160e6 { exit } { printf "%s%c", $2, 0 }' >"$scratch/names" || true
    xargs -0 -a "$scratch/names" cp --parents -t "$1"
}

begin
if (($#)); then
    (($# >= 3)) || die "RAID-5 needs three members or more, $# given"
    members=("$@")
    flags=("${force[@]}")
    next "members: ${members[*]}"
else
    make_members 6 256M
    flags=(--assume-clean) # new files are all zeros, and so is their parity
    next "six members of 256 MiB in $scratch"
fi
count=${#members[@]}

next "create: RAID-5 over $count members, 64 KiB chunks"
"$TWILL" create --level 5 --chunk 64K --name demo "${flags[@]}" "${members[@]}" >"$scratch/create.log" 2>&1 ||
    { cat "$scratch/create.log" >&2; exit 1; }

next "serve it over NBD at a unix socket"
serve "${members[@]}"
size=$(array_size)
say "      $((size >> 20)) MiB usable"

next "make an ext4 image with real files and copy it to the array"
mkdir "$scratch/files"
real_files "$scratch/files"
files=$(tr -cd '\0' <"$scratch/names" | wc -c)
truncate -s 224M "$scratch/image"
mke2fs -q -t ext4 -F -m 0 -N $((files + files / 4 + 4096)) -d "$scratch/files" "$scratch/image"
rm -rf "$scratch/files"
image_bytes=$(stat -c %s "$scratch/image")
((size >= 2 * image_bytes)) || die "the members are too small: the array needs $((2 * image_bytes >> 20)) MiB, it has $((size >> 20))"
from=$(seconds)
nbdcopy --flush --requests=32 --connections=4 --allocated "$scratch/image" "$uri"
copied_in=$(rate "$image_bytes" "$from" "$(seconds)")
say "      $files files, $((image_bytes >> 20)) MiB, $copied_in"

next "write and verify with fio beside the image, and fail a member under that load"
victim=${members[1]}
fio_verify load --offset="$image_bytes" --offset_increment=48M --size=48M --rw=randwrite --bs=16k --rate=,12m &
load=$!
sleep 1.5
kill -0 $load 2>/dev/null || { wait $load || true; die "the load ended before the member failed"; }
fail_member "$victim" >"$scratch/fail.log" 2>&1 || { cat "$scratch/fail.log" >&2; die "twill fail $victim: its output is above"; }
say "      failed: $victim"
wait $load || die "fio found wrong data: $(cat "$scratch/load.log")"
load_report=$(sed -n '/^{/,$p' "$scratch/load.json" | jq -r '.jobs[0] |
    "\(.write.total_ios) writes and \(.read.total_ios) reads of 16 KiB, none wrong; p99 of a write \(.write.clat_ns.percentile["99.000000"] / 1e6 * 100 | round / 100) ms"')
say "      $load_report"

next "read everything back from the degraded array and compare"
from=$(seconds)
nbdcopy --requests=32 --connections=4 "$uri" "$scratch/back"
copied_out=$(rate "$size" "$from" "$(seconds)")
cmp -n "$image_bytes" "$scratch/image" "$scratch/back" || die "the image that was read back differs from the one copied in"
truncate -s "$image_bytes" "$scratch/back"
e2fsck -fn "$scratch/back" >"$scratch/e2fsck.log" 2>&1 || { cat "$scratch/e2fsck.log" >&2; die "e2fsck finds errors in the image that was read back"; }
rm -f "$scratch/back"
say "      image equal, e2fsck clean, $copied_out"

next "write at full speed to the degraded array, for the report"
fio_verify degraded --offset="$image_bytes" --offset_increment=48M --size=48M --rw=write --bs=256k
degraded=$(sed -n '/^{/,$p' "$scratch/degraded.json" | jq -r '.jobs[0].write.bw_bytes / 1e6 | round')

next "stop, and examine the members with mdadm"
stop_array
agreement="mdadm is not installed, so only twill examined the members"
if command -v mdadm >/dev/null; then
    for member in "${members[@]}"; do
        mdadm --examine "$member" >"$scratch/examine" 2>&1 || { cat "$scratch/examine" >&2; die "mdadm --examine $member"; }
        awk -F ' : ' '{ gsub(/^ +/, "", $1) } $1 == "Array UUID" || $1 == "Raid Level" || $1 == "Raid Devices" || $1 == "Chunk Size" { printf "%s=%s ", $1, $2 }
            $1 == "Checksum" { printf "checksum=%s ", $2 ~ /correct/ ? "correct" : "wrong" }' "$scratch/examine"
        echo
    done | sort -u >"$scratch/seen"
    [[ $(wc -l <"$scratch/seen") == 1 ]] && grep -q 'Raid Level=raid5 ' "$scratch/seen" && grep -q "Raid Devices=$count " "$scratch/seen" &&
        grep -q 'checksum=correct' "$scratch/seen" || { cat "$scratch/seen" >&2; die "mdadm --examine disagrees about the array; its output is above"; }
    live=0 stale=0 events='' # the failed member keeps its old event count
    for member in "${members[@]}"; do
        now=$(mdadm --examine "$member" | awk -F ' : ' '/^ *Events :/ { print $2 }')
        if [[ $member == "$victim" ]]; then stale=$now; else events+="$now "; live=$now; fi
    done
    [[ $(tr ' ' '\n' <<<"$events" | sort -u | grep -c .) == 1 ]] || die "live members disagree on the event count: $events"
    ((stale < live)) || die "the failed member has event count $stale, the others $live"
    agreement="mdadm --examine agrees: raid5, $count members, checksums correct, events $live (failed member $stale)"
fi
"$TWILL" examine --json "${members[@]}" | jq -e . >/dev/null || die "twill examine --json"
say "      $agreement"

cat <<END

Report
  array          RAID-5 over $count members, 64 KiB chunks, $((size >> 20)) MiB
  files          $files files in an ext4 image of $((image_bytes >> 20)) MiB, copied in at $copied_in
  under load     $victim failed while fio wrote: $load_report
  degraded       read at $copied_out, written at $degraded MB/s (256 KiB, verified)
  compared       every byte of the image equal, e2fsck clean
  members        $agreement
  time           $SECONDS s
END
