#!/bin/bash
# vm: --mem 3G --mod raid0,raid1,raid10,raid456,loop --timeout 7200 --mdadm sid
# takes: 300 s
# md-compatibility.sh [ROW…]: md and twill make arrays, write them and leave them to each other, as md-compatibility.table
# lists them; without arguments the script runs the few rows marked with a star. A row may end refused, or in doubt, where
# the table says so. Each row runs with the mdadm of this machine and with a newer one, if that could be fetched, rows with a star
# with one of the two in turns; ONLY_MDADM=4.4 runs it with that version alone.
#
# An array that md makes goes md (first state), twill (second state), md; one that twill makes goes twill, md, twill, md.
# Each reads all blocks before it writes: a block holds what was acknowledged last, or, after a cut, what was issued after
# that. At the end md's scrub finds no mismatch, exactly the expected members are missing, and the event counts of the others
# agree.
set -euo pipefail
shopt -s extglob
RAM_DRIVES=16 BOTH_MDADM=1
. "$(dirname "${BASH_SOURCE[0]}")/md.sh"
. "$(dirname "${BASH_SOURCE[0]}")/sides.sh"
md=/sys/block/md0/md
seed=1
facts=/run/facts
ending=/run/ending

ends() { # OUTCOME REASON: the row ends here
    printf '%s' "$1" >$ending
    printf '%s' "$2" >$facts
    exit 0
}
refused() { ends refused "$1: $2"; } # PROGRAM REASON

row() { # MAKER LEVEL COUNT LAYOUT CHUNK METADATA BITMAP SPARES DRIVES FIRST SECOND
    local maker=$1 first=${10} second=${11}
    level=$2 count=$3 layout=$4 chunk=$5 metadata=$6 bitmap=$7 spares=$8
    clean_slate
    ram_members $((count + spares))
    [[ $9 == same ]] || other_drives "$9"
    if [[ $maker == md ]]; then
        md_begins "$first"
        twill_takes "$second"
    else
        twill_begins "$first"
        md_takes "$second"
        twill_takes clean
    fi
    md_judges "$first"
}

md_begins() { # STATE
    [[ $1 != *cut ]] || map_members
    if [[ $1 == resync* ]]; then
        garbage "${members[@]}"
        md_make resync
        half_way mdadm --quiet --readwrite /dev/md0
    else
        md_make clean
    fi
    fill
    md_leave "$1"
}

twill_begins() { # STATE
    local answer
    answer=$(twill_make clean) || refused twill "$(head -n 1 <<<"$answer")"
    twill_run
    fill
    twill_leave "$1"
}

twill_takes() { # STATE
    local answer
    answer=$("$TWILL" assemble --json "${members[@]}" 2>/dev/null) ||
        refused twill "$(jq -r '[.arrays[].refusal // empty, (.arrays[].candidates[], .others[] | .reason // empty)] | first' <<<"$answer")$(md_refuses_too)"
    [[ $(jq '[.arrays[].in_doubt[]] | length' <<<"$answer") == 0 ]] || twill_doubts "$answer"
    twill_run
    check_data twill
    if [[ $1 == cut ]]; then twill_cut; else load 1; settled; twill_stop; fi
}

twill_doubts() { # ANSWER: blocks are right or an error where the missing member's data is unknown; none is wrong
    local stripes refuses answer
    stripes=$(jq '[.arrays[].in_doubt[] | .end - .first] | add' <<<"$1")
    refuses=$(md_refuses_too)
    twill_run
    answer=$("$XTASK" blocks check --device $device --state "$scratch/state" --seed "$seed" --unreadable) || die "twill: wrong data: $answer"
    twill_stop
    ends "in doubt" "twill starts it with $stripes stripes in doubt: $(tail -n 1 <<<"$answer")$refuses"
}

md_refuses_too() { # prints what md does with the same members
    if md_run >/dev/null; then md_stop; echo " (md starts it)"; else md_stop; echo " (md refuses it too)"; fi
}

md_takes() { # STATE
    [[ $1 != *cut ]] || map_members
    local answer
    answer=$(md_run) || refused md "$(paste -s -d ' ' <<<"$answer")"
    device=/dev/md0
    check_data md
    if [[ $1 == cut ]]; then load_start; md_cut; else load 1; md_wait; md_stop; fi
}

md_wait() { [[ ! -e $md/sync_action ]] || wait_for "the resync of md" md_is_idle; }
md_is_idle() { mdadm --quiet --wait /dev/md0; [[ $(<$md/sync_action) == idle ]]; }

md_judges() { # STATE in which the array's maker left it
    local answer missing=0 has=0 events
    answer=$(md_run) || refused "md at the end" "$(paste -s -d ' ' <<<"$answer")"
    device=/dev/md0
    md_wait
    check_data "md at the end"
    md_check
    [[ $1 != degraded* ]] || missing=1
    [[ $1 != 2-degraded* ]] || missing=2
    [[ ! -e $md/degraded ]] || has=$(<$md/degraded)
    [[ $has == "$missing" ]] || die "md misses $has members, should miss $missing: $(cat /proc/mdstat)"
    mdadm --quiet --wait-clean /dev/md0 2>/dev/null || true
    md_stop
    events=$(for one in "${members[@]}"; do mdadm --examine "$one" | awk '/Device Role : Active/ { active = 1 } /Events :/ { events = $3 } END { if (active) print events }'; done | sort | uniq -c | awk '{ print $2 "x" $1 }')
    [[ $(wc -l <<<"$events") == 1 || $missing != 0 ]] || die "event counts differ: $events"
    printf '%s' "$events" >$facts
}

other_drives() { # odd, unequal, 4kn or mixed: loop devices over the drives
    local i loop bytes=$((RAM_MIB << 20))
    local -a options
    for ((i = 0; i < ${#members[@]}; i++)); do
        options=()
        # Each is smaller by other sectors; of a drive with blocks of 4 KiB by other blocks.
        [[ $1 == 4kn ]] || options+=(--sizelimit $((bytes - i * 7 * 4096 - (i % 2) * 3 * 512)))
        [[ $1 != mixed ]] || options=(--sizelimit $((bytes - i * 7 * 4096)))
        [[ $1 != unequal ]] || options=(--sizelimit $((bytes - (i * 5 % 3) * bytes / 4 - i * 4096)))
        [[ $1 == odd || $1 == unequal || $1 == mixed && $((i % 2)) == 0 ]] || options+=(--sector-size 4096)
        loop=$(losetup --find --show "${options[@]}" "${members[i]}") || die "losetup ${options[*]} ${members[i]}"
        members[i]=$loop
    done
}

run_row() { # VERSION LINE of the table, without its star: prints one line with a JSON object
    local version=$1; shift
    local line=$1 name code=0 log start=$SECONDS outcome words='' expected
    local -a word
    read -ra word <<<"${line%%|*}"
    expected=${line#*|} expected=${expected# }
    name="${word[*]}"
    # Only what an outcome of this version says: `works 4.4: refused` means that it works except with 4.4.
    [[ $expected != *" $version: "* ]] || expected=${expected##*" $version: "}
    expected=${expected%% +([0-9.]): *}
    log=$(mktemp)
    rm -f $facts $ending
    seed=$((seed + 1))
    (set -euo pipefail; begin; row "${word[@]}") >"$log" 2>&1 & wait $! || code=$?
    outcome=failed
    if ((code == 0)); then
        words=$(<$facts)
        outcome=works
        [[ ! -f $ending ]] || outcome=$(<$ending)
        # The table expects an outcome, and for some rows a part of its reason.
        [[ $expected == "$outcome"* && $words == *"${expected#"$outcome"?( )}"* ]] || { words="$outcome, not as expected: $words"; outcome=failed; }
    else
        words="status $code: $(tail -n 1 "$log")"
    fi
    if [[ $outcome == failed ]]; then failed=$((failed + 1)); say "FAILED  mdadm $version: $name: $words ($((SECONDS - start)) s)"; sed 's/^/    /' "$log"; dmesg | tail -n 8 | sed 's/^/    /'
    else passed=$((passed + 1)); say "ok      mdadm $version: $name: $outcome, $words ($((SECONDS - start)) s)"; fi
    jq -nc --arg row "$name" --arg mdadm "$version" --arg outcome "$outcome" --arg words "$words" --argjson seconds $((SECONDS - start)) \
        '{row: $row, mdadm: $mdadm, outcome: $outcome, words: $words, seconds: $seconds}' | sed 's/^/JSON /'
    rm -f "$log"
}

run_rows() { # TURN WORD…: rows that contain a word; without words those with a star, of each two the one that is this version's
    local turn=$1 version star line chosen word stars=0; shift
    version=$(mdadm --version 2>&1 | sed -n 's/^mdadm - v\([0-9.]*\).*/\1/p')
    [[ ${ONLY_MDADM:-$version} == "$version" ]] || return 0
    jq -nc --arg kernel "$(uname -r)" --arg mdadm "$(mdadm --version 2>&1 | head -n 1)" '{kernel: $kernel, mdadm: $mdadm}' | sed 's/^/JSON /'
    while read -r star line; do
        if (($#)); then
            chosen=
            for word; do [[ "$(tr -s " " <<<"${line%%|*}")" != *"$word"* ]] || chosen=1; done
            [[ -n $chosen ]] || continue
        else
            [[ $star == '*' ]] || continue
            stars=$((stars + 1))
            [[ -z ${VM_MDADM:-} || -n ${ONLY_MDADM:-} ]] || ((stars % 2 == turn)) || continue
        fi
        run_row "$version" "$line"
    done < <(grep -v '^#' "$(dirname "${BASH_SOURCE[0]}")/md-compatibility.table")
}

run_rows 1 "$@"
if [[ -n ${VM_MDADM:-} ]]; then
    PATH=$VM_MDADM:$PATH
    hash -r
    run_rows 0 "$@"
else
    skipped=$((skipped + 1)) && say "skipped a newer mdadm: it could not be fetched"
fi
clean_slate
summary
