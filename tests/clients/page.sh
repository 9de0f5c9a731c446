#!/bin/bash
# page.sh: the page of `serve --metrics` in a real browser, and `twill top` in a real terminal, while a member fails and is rebuilt.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../../scripts/array.sh"
here=$(dirname "${BASH_SOURCE[0]}")

array() { # [OPTION…]: of serve
    # Where commands look for servers: what the page tells to type names the array alone.
    export TWILL_RUNTIME_DIR=$scratch/run; mkdir "$TWILL_RUNTIME_DIR"
    control=$TWILL_RUNTIME_DIR/shown.sock
    make_members 4 64M
    "$TWILL" create --level 5 --chunk 64K --name shown --assume-clean "${members[@]}" >/dev/null
    serve --metrics 127.0.0.1:0 "$@" "${members[@]}"
    page=$(sed -n 's/.*a page for a browser is at //p' "$scratch/server.log" | head -n 1)
    [[ $page == http://127.0.0.1:*/ ]] || die "the log does not say where the page is"
}

load() { fio --name=load --ioengine=nbd --uri="$uri" --rw=randrw --bs=16k --iodepth=4 --size=32M --time_based --runtime=60 --rate=8m >/dev/null 2>&1 & }

browse() { # [AXE]: what the page says goes to $scratch/said
    command -v chromium >/dev/null || skip "chromium is not installed"
    command -v node >/dev/null || skip "node is not installed"
    rm -rf "$scratch/profile"
    timeout 90 node "$here/page.mjs" "$page" "$scratch" "$@" >"$scratch/said" || die "the browser: status $?"
}

says() { jq -e "$@" "$scratch/said" >/dev/null || die "the page does not say $*: $(cat "$scratch/said")"; }

page_shows_a_failure() {
    array; load
    browse
    says '.title == "Twill" and (.text | test("shown\\s+(active|clean)") and contains("in sync") and contains("Nothing: all is well"))'
    says '.text | test("reads [1-9][0-9.]* (KiB|MiB)/s, [0-9.]+ .s")' # at a member
    says '.text | test("99 % within\\s+[0-9.]+ (.s|ms)")'
    fail_member "${members[1]}"
    browse
    says --arg path "${members[1]}" '(.title | contains("degraded")) and (.text | contains("slot 1") and contains($path) and test("\\bfailed\\b"))'
    says --arg path "${members[1]}" '.text | contains("twill remove --array shown " + $path)'
    says '.text | contains("member 1 failed: an operator said so")'
    # It moves nothing under a reader, fits a narrow screen, and the keyboard reaches what scrolls.
    says '.shifted < 0.1 and .wider_than_narrow == 0 and (.reached | index("Skip to the arrays")) != null and (.reached | index("Newest events")) != null'
    # What it tells to do is right.
    truncate -s 64M "$scratch/new"
    local line; line=$(jq -r '.text' "$scratch/said" | grep -m 1 '^twill remove')
    line=${line//DEVICE/$scratch/new}
    "$TWILL" set --control "$control" --rate 4M >/dev/null
    bash -c "${line//twill /$TWILL }" 2>&1 | sed 's/^/    /' || die "what the page tells to do fails: $line"
    browse
    says '.text | contains("recovery of slot 1") and contains("being rebuilt")'
    stop_array --force
}

page_changes_an_array() {
    (umask 077; od -An -N16 -tx1 /dev/urandom | tr -d ' \n' >"$scratch/token")
    array --metrics-token "$scratch/token"
    truncate -s 64M "$scratch/new"
    TOKEN=$(<"$scratch/token") PRESS="Check parity or copies
Fail ${members[1]}
Remove ${members[1]}" browse
    says '.said.hidden == false and (.said.wrong | test("not the token"))'
    says '.said["Check parity or copies"] == { question: "", words: "The check was started." }'
    says --arg path "${members[1]}" '.said["Fail " + $path].question | contains("Stop using " + $path + " in shown")'
    says --arg path "${members[1]}" '.said["Remove " + $path].words == $path + " was removed."'
    "$TWILL" detail --control "$control" --json | jq -e '.degraded and .scrub.phase == "finished" and ([.members[] | .state] == ["in-sync", "missing", "in-sync", "in-sync"])' >/dev/null ||
        die "the array is not as the page made it"
    grep -q 'asked for on the page' "$scratch/server.log" || die "the log does not tell of it"
    # Without the token, and where the page only reads, nothing is changed.
    local uuid status; uuid=$("$TWILL" detail --control "$control" --json | jq -r .uuid)
    status=$(curl -s -o /dev/null -w '%{http_code}' --json "{\"uuid\":\"$uuid\",\"method\":\"fail\",\"params\":{\"member\":\"${members[0]}\"}}" "${page}changes")
    [[ $status == 401 ]] || die "a change without the token: status $status"
    stop_array
}

page_is_accessible() {
    command -v npm >/dev/null || skip "npm is not installed"
    (cd "$scratch" && timeout 60 npm pack --silent axe-core@4 >/dev/null 2>&1 && tar xzf axe-core-*.tgz package/axe.min.js) ||
        skip "axe-core could not be fetched"
    (umask 077; od -An -N16 -tx1 /dev/urandom | tr -d ' \n' >"$scratch/token")
    array --metrics-token "$scratch/token"; fail_member "${members[2]}"
    TOKEN=$(<"$scratch/token") browse "$scratch/package/axe.min.js"
    says '.axe_light.passes > 20 and .axe_light.violations == [] and .axe_dark.violations == []'
    stop_array
}

top_in_a_terminal() {
    command -v tmux >/dev/null || skip "tmux is not installed"
    array
    local -a tmux=(tmux -L "twill-$$" -f /dev/null)
    "${tmux[@]}" new-session -d -x 110 -y 24 "'$TWILL' top --control '$control'; echo \"ended with \$?\"; sleep 60"
    trap '"${tmux[@]}" kill-server 2>/dev/null || true' RETURN
    screen_has() { "${tmux[@]}" capture-pane -p | grep -qF -- "$1"; }
    wait_for "top to show the array" screen_has 'shown: raid5 [4/4] [UUUU]'
    fail_member "${members[0]}"
    wait_for "top to show the failure" screen_has '[_UUU]'
    "${tmux[@]}" send-keys '?'
    wait_for "the help" screen_has 'Keys, and what is shown'
    "${tmux[@]}" send-keys x
    "${tmux[@]}" resize-window -x 60 -y 8
    "${tmux[@]}" send-keys End
    wait_for "the last line" screen_has 'members are missing'
    "${tmux[@]}" send-keys q
    wait_for "the end of top" screen_has 'ended with 0'
    stop_array
}

run_case "the page while a member fails" page_shows_a_failure
run_case "the page changes an array" page_changes_an_array
run_case "the page to axe-core" page_is_accessible
run_case "top in a terminal" top_in_a_terminal
summary
