#!/bin/bash
# vm: --mem 2G --mod raid456,raid1,raid10 --timeout 1800
# takes: 80 s
# replace.sh: twill continues a replacement that md has begun, and md one of twill's; after a server was killed, the next one
# begins the copy again. Afterwards md finds the same data on the array with the new member, and its check no mismatch.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/md.sh"

RAM_MEMBERS=5
md=/sys/block/md0/md

five_drives() { # the fifth replaces the second
    ram_members $RAM_MEMBERS
    old=${members[1]} new=${members[4]}
    before=("${members[@]:0:4}") after=("${members[0]}" "$new" "${members[2]}" "${members[3]}")
    dd if=$RANDOM_DATA of="$new" bs=1M count=12 oflag=direct status=none 2>/dev/null || true
    mdadm --quiet --zero-superblock "$new" 2>/dev/null || true
}

md_copied() { local done; read -r done _ <$md/sync_completed; [[ $done != none && $done != delayed ]] && ((done >= $1)); }

twill_replaced() { [[ $("$TWILL" status --json --control "$control" | jq -r '.arrays[0].members[1].path') == "$new" ]]; }

same_through_nbd() {
    nbdcopy "$uri" "$scratch/back"
    same "$scratch/back" "$(array_size)" twill
}

# md assembles the array with the new member, and leaves out the old one when both are named.
md_has_the_new_one() {
    md_assemble "${after[@]}"
    same /dev/md0 "$(blockdev --getsize64 /dev/md0)" md
    md_check
    [[ ! -e $md/degraded || $(<$md/degraded) == 0 ]] || die "degraded: $(cat /proc/mdstat)"
    md_stop
    md_assemble "${members[@]}"
    ! grep -q "${old##*/}\[" /proc/mdstat || die "md takes the old member: $(cat /proc/mdstat)"
    md_stop
}

md_begins_twill_goes_on() { # OPTIONS OF mdadm --create…
    five_drives
    mdadm --quiet --create /dev/md0 --run --assume-clean --raid-devices=4 "$@" "${before[@]}" 2>"$scratch/mdadm" ||
        { cat "$scratch/mdadm"; die "mdadm --create"; }
    dd if=$RANDOM_DATA of=/dev/md0 bs=1M oflag=direct status=none 2>/dev/null || true
    dd if=/dev/md0 of="$scratch/wanted" bs=1M iflag=direct status=none
    local half=$(($(<$md/component_size) / 1024 * 1024))
    echo "$half" >$md/sync_max
    mdadm --quiet /dev/md0 --add "$new"
    mdadm --quiet /dev/md0 --replace "$old" --with "$new"
    wait_for "md's copy in its middle" md_copied "$half"
    md_stop
    "$TWILL" assemble --explain "${members[@]}" | grep "to replace the member in slot 1" || die "twill does not see what md was about"
    serve "${members[@]}"
    wait_for "the replacement by twill" twill_replaced
    same_through_nbd
    stop_array
    md_has_the_new_one
}

twill_begins() { # LEVEL OPTION…: begins a replacement so slow that it lasts as long as the server
    five_drives
    "$TWILL" create --name vm --level "$@" --assume-clean "${before[@]}" >/dev/null
    serve "${before[@]}"
    head -c "$(array_size)" "$RANDOM_DATA" | nbdcopy --flush - "$uri"
    head -c "$(array_size)" "$RANDOM_DATA" >"$scratch/wanted"
    "$TWILL" set --control "$control" --rate 1
    "$TWILL" replace --control "$control" "$old" --with "$new" --force
}

md_has_replaced() { mdadm --quiet --wait /dev/md0; ! grep -q '(R)' /proc/mdstat && mdadm --detail /dev/md0 | grep -q "active sync .*$new"; }

twill_begins_md_goes_on() {
    twill_begins 5 --chunk 64K
    stop_array
    mdadm --examine "$new" | grep -q "Feature Map : 0x12" || { mdadm --examine "$new"; die "no replacement with a recovery offset"; }
    mdadm --quiet --assemble --run /dev/md0 "${members[@]}" || { mdadm --examine "${members[@]}"; die "mdadm --assemble"; }
    mdadm --quiet --readwrite /dev/md0 2>/dev/null || true
    wait_for "the replacement by md" md_has_replaced
    same /dev/md0 "$(blockdev --getsize64 /dev/md0)" md
    md_check
    md_stop
    serve "${members[@]}"
    same_through_nbd
    twill_replaced || die "twill has another member in slot 1"
    stop_array
}

killed() { # LEVEL OPTION…
    twill_begins "$@"
    "$TWILL" set --control "$control" --rate 2M
    kill_server
    serve "${members[@]}"
    wait_for "the replacement after a crash" twill_replaced
    settled
    same_through_nbd
    stop_array
    md_has_the_new_one
}

run_case "md begins, twill goes on, RAID-6 with a bitmap" md_begins_twill_goes_on --level=6 --chunk=64 --bitmap=internal --data-offset=1M
run_case "twill begins, md goes on" twill_begins_md_goes_on
long_case "twill is killed and begins again" killed 5 --chunk 64K
long_case "md begins, twill goes on, RAID-10" md_begins_twill_goes_on --level=10 --chunk=64 --data-offset=1M
long_case "md begins, twill goes on, RAID-5 1.0" md_begins_twill_goes_on --level=5 --chunk=64 --metadata=1.0
long_case "twill is killed and begins again, RAID-1" killed 1
summary
