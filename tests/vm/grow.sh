#!/bin/bash
# vm: --mem 3G --mod raid1,raid10,raid456 --timeout 1800
# takes: 210 s
# grow.sh: md uses the bitmap that `twill grow` gives an array, and has none after twill took it away; twill uses the one that mdadm's
# --grow gave. Data damaged on purpose shows what a member that was away got: what is marked, and no more. Last, md and twill start what
# a power cut between any two superblocks leaves.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/md.sh"

CHUNK=65536
AWAY=1
md=/sys/block/md0/md

heads() { # FOLDER: copies what stands before the data of each member
    local i
    mkdir -p "$1"
    for ((i = 0; i < ${#members[@]}; i++)); do dd if="${members[i]}" of="$1/$i" bs=1M count=1 iflag=direct status=none; done
}

damage_unmarked() { # noise in stripe 150 of the member that is away
    dd if=/dev/urandom of="${members[AWAY]}" bs=4096 seek=$(((1 << 20) / 4096 + 150 * CHUNK / 4096)) count=1 oflag=direct status=none
}

md_mismatches() { # sectors that disagree, by md's own scrub
    mdadm --quiet --wait /dev/md0 || true
    echo check >$md/sync_action
    mdadm --quiet --wait /dev/md0 || true
    while [[ $(<$md/sync_action) != idle ]]; do sleep 0.1; done
    cat $md/mismatch_cnt
}

# Stripe 150 was not written and keeps its 8 damaged sectors; all other stripes agree.
only_unmarked_is_wrong() {
    local wrong
    wrong=$(md_mismatches)
    [[ $wrong == 8 ]] || die "md finds mismatch_cnt $wrong, not the 8 sectors of the stripe that nobody wrote"
}

has_clean_bitmap() { # MEMBER: by mdadm, of the event count that its superblock has
    local text events
    text=$(mdadm --examine-bitmap "$1" 2>&1) || die "mdadm finds no bitmap on $1: $text"
    grep -q ' 0 dirty' <<<"$text" || die "bits are set: $text"
    events=$(mdadm --examine "$1" | sed -n 's/.*Events : //p')
    grep -Eq "Events : $events\$" <<<"$text" || die "the superblock is of event $events: $text"
}

md_has_bitmap_at() { # CONTENT: what md says of its bitmap's place begins so
    local place
    place=$(<$md/bitmap/location)
    [[ $place == "$1"* ]] || die "md's bitmap is at $place, not at $1"
}

twill_array() { # OPTIONS OF twill create…: a written array
    ram_members 4
    "$TWILL" create --name vm --level 5 --chunk 64K --data-offset 1M --assume-clean "$@" "${members[@]}" >/dev/null
    serve "${members[@]}"
    head -c 24M "$RANDOM_DATA" | nbdcopy --flush - "$uri"
    stop_array >/dev/null
}

twill_adds_md_uses() {
    local member
    twill_array --bitmap none
    "$TWILL" grow --bitmap internal --bitmap-chunk 64K "${members[@]}"
    for member in "${members[@]}"; do has_clean_bitmap "$member"; done
    md_assemble "${members[@]}"
    md_has_bitmap_at +8
    ! dmesg | grep -q 'bitmap file is out of date' || die "md does not believe the bitmap: $(dmesg | tail -n 5)"
    mdadm --quiet /dev/md0 --fail "${members[AWAY]}" --remove "${members[AWAY]}"
    dd if=$RANDOM_DATA of=/dev/md0 bs=64K count=3 oflag=direct status=none
    damage_unmarked
    mdadm --quiet /dev/md0 --re-add "${members[AWAY]}" || die "md takes no member back by this bitmap"
    only_unmarked_is_wrong
    md_stop
}

twill_removes_md_has_none() {
    local member
    twill_array --bitmap internal --bitmap-chunk 64K
    "$TWILL" grow --bitmap none "${members[@]}"
    for member in "${members[@]}"; do
        ! mdadm --examine "$member" | grep -q 'Internal Bitmap' || die "mdadm finds a bitmap on $member"
    done
    md_assemble "${members[@]}"
    md_has_bitmap_at none
    [[ $(md_mismatches) == 0 ]] || die "md finds mismatches"
    # mdadm gives it one again, where twill had it.
    mdadm --quiet --grow /dev/md0 --bitmap=internal
    md_has_bitmap_at +8
    md_stop
    "$TWILL" grow --bitmap none "${members[@]}"
}

md_adds_twill_uses() {
    ram_members 4
    mdadm --quiet --create /dev/md0 --run --assume-clean --raid-devices=4 --level=5 --chunk=64 --data-offset=1M --bitmap=none \
        "${members[@]}" 2>"$scratch/mdadm" || { cat "$scratch/mdadm"; die "mdadm --create"; }
    mdadm --quiet --grow /dev/md0 --bitmap=internal --bitmap-chunk=64K
    dd if=$RANDOM_DATA of=/dev/md0 bs=1M count=24 oflag=direct status=none
    md_stop
    serve "${members[@]}"
    [[ $("$TWILL" status --json --control "$control" | jq -r '.arrays[0].consistency_policy') == bitmap ]] || die "twill has no bitmap"
    "$TWILL" fail --control "$control" $AWAY
    "$TWILL" remove --control "$control" $AWAY
    head -c 192K "$RANDOM_DATA" | nbdcopy --flush - "$uri"
    damage_unmarked
    "$TWILL" re-add --control "$control" "${members[AWAY]}"
    settled
    stop_array
    md_assemble "${members[@]}"
    only_unmarked_is_wrong
    md_stop
}

# The third round of writes, the superblocks, was cut: any of them may be the new one. All that stands beside them came before.
cut() { # MEMBER WITH A NEW SUPERBLOCK…
    local i
    for ((i = 0; i < ${#members[@]}; i++)); do
        dd if="$scratch/after/$i" of="${members[i]}" bs=1M count=1 oflag=direct status=none
        [[ " $* " == *" $i "* ]] || dd if="$scratch/before/$i" of="${members[i]}" bs=4096 skip=1 seek=1 count=1 oflag=direct status=none
    done
}

starts_after_a_cut() { # BITMAP OF create, BITMAP OF grow
    local new answer
    twill_array --bitmap "$1"
    heads "$scratch/before"
    "$TWILL" grow --bitmap "$2" "${members[@]}" >/dev/null
    heads "$scratch/after"
    for new in "" 0 3 "1 2" "0 1 2" "0 1 2 3"; do
        # shellcheck disable=SC2086
        cut $new
        answer=$("$TWILL" assemble --json "${members[@]}")
        jq -e '.arrays[0] | .would_start and .resync_from_bytes == null and (.missing_slots // [] | length) == 0' <<<"$answer" >/dev/null ||
            die "with new superblocks on [$new]: $answer"
        dmesg --clear
        md_assemble "${members[@]}"
        [[ $(<$md/degraded) == 0 ]] || die "md leaves out members with new superblocks on [$new]: $(cat /proc/mdstat)"
        ! dmesg | grep -Eq 'out of date|resync of RAID|recovery of RAID' || die "with new superblocks on [$new]: $(dmesg)"
        md_stop
        # Twill, too: what it makes of the cut is whole for md.
        # shellcheck disable=SC2086
        cut $new
        serve "${members[@]}"
        head -c 64K "$RANDOM_DATA" | nbdcopy --flush - "$uri"
        stop_array >/dev/null
        answer=$(for member in "${members[@]}"; do mdadm --examine "$member" | grep -c 'Internal Bitmap' || true; done | sort -u)
        [[ $answer == 0 || $answer == 1 ]] || die "with new superblocks on [$new] some members have a bitmap: $answer"
        md_assemble "${members[@]}"
        [[ $(<$md/degraded) == 0 && $(md_mismatches) == 0 ]] || die "with new superblocks on [$new]: $(cat /proc/mdstat)"
        md_stop
    done
}

run_case "twill adds a bitmap, md uses it" twill_adds_md_uses
run_case "twill takes a bitmap away, md has none" twill_removes_md_has_none
run_case "mdadm adds a bitmap, twill uses it" md_adds_twill_uses
run_case "what a cut leaves while a bitmap comes" starts_after_a_cut none internal
run_case "what a cut leaves while a bitmap goes" starts_after_a_cut internal none
summary
