#!/bin/bash
# vm: --mem 2G --mod tls,nvme-tcp,nvmet-tcp,raid456 --tls --timeout 1200
# takes: 150 s
# nvme-tls.sh: TLS with keys that both ends share beforehand. The kernel's NVMe/TCP host, whose handshakes tlshd (GnuTLS) makes, uses
# `twill target` and an array of `twill serve --nvme-tcp`; Twill has members at the kernel's target. Wrong keys, and none.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/md.sh"
. "$(dirname "${BASH_SOURCE[0]}")/device.sh"
[[ -n ${VM_TLS:-} ]] || skip "tlshd and its nvme-cli cannot be fetched"
PATH=$VM_TLS:$PATH
. "$(dirname "${BASH_SOURCE[0]}")/nvme-host.sh"
NVMET=/sys/kernel/config/nvmet

printf '[debug]\nloglevel=1\n[authenticate]\nkeyrings=.nvme\n' >/run/tlshd.conf
tlshd -c /run/tlshd.conf -s >/run/tlshd.log 2>&1 &
sleep 1
kill -0 $! || skip "tlshd does not run: $(tail -n 3 /run/tlshd.log)"

new_key() { nvme gen-tls-key --hmac "$1" 2>/dev/null; } # HASH
kernel_has() { # KEY [SUBSYSTEM]: the kernel has the key for this host
    nvme check-tls-key --insert --keydata "$1" --identity 1 --hostnqn $HOST --subsysnqn "${2:-$SUBSYSTEM}" >"$scratch/inserted" 2>&1 ||
        die "check-tls-key: $(cat "$scratch/inserted")"
}
# The kernel keeps every key, and chooses by names: each case has a subsystem of its own.
new_subsystem() { SUBSYSTEM=nqn.2026-11.test:$(</proc/sys/kernel/random/uuid); }
kept() { (umask 077; echo "$1" >"$scratch/key"); } # KEY: in a file for Twill

kernel_host() { # the kernel's host at `twill target`
    local key
    new_subsystem
    ram_members 1
    key=$(new_key 1)
    kept "$key"
    kernel_has "$key"
    start_target --tls-key "$HOST=$scratch/key"
    connect --tls
    device_fio encrypted --rw=randrw --bsrange=4k-128k --blockalign=4k --size=6M
    disconnect
    if connects; then die "a host with a key connects without TLS"; fi
    grep -q "came without TLS" "$scratch/target.log" || die "the log has no word of it: $(cat "$scratch/target.log")"
    stop_target
}
larger_hash() { # GnuTLS signs for every key with SHA-256 (oracle/ktls-utils, pull request 86): refused, and the log says why
    local key
    new_subsystem
    ram_members 1
    key=$(new_key 2)
    kept "$key"
    kernel_has "$key"
    start_target --tls-key "$HOST=$scratch/key"
    if connects --tls; then
        wait_for "namespace 1" find_device
        device_fio encrypted --rw=randrw --bs=16k --size=2M
        disconnect
    else
        grep -q -e "--hmac 1" "$scratch/target.log" || die "the log does not say what to do: $(cat "$scratch/target.log")"
    fi
    stop_target
}
wrong_key() { # the kernel has another key than the target
    local other
    new_subsystem
    ram_members 1
    other=$(new_key 1)
    kernel_has "$other"
    kept "$(new_key 1)"
    start_target --tls-key "$HOST=$scratch/key"
    if connects --tls; then die "a host with another key connects"; fi
    grep -q "could not be served over TLS" "$scratch/target.log" || die "the log has no word of it: $(cat "$scratch/target.log")"
    kept "$other"
    stop_target
    start_target --tls-key "$HOST=$scratch/key"
    connect --tls
    disconnect
    stop_target
}
discovered() { # the discovery log says that TLS is wanted, under TLS
    local key
    new_subsystem
    ram_members 1
    key=$(new_key 1)
    kept "$key"
    kernel_has "$key" nqn.2014-08.org.nvmexpress.discovery
    start_target --tls-key "$HOST=$scratch/key"
    host discover --tls >"$scratch/discover" 2>&1 || die "discover: $(cat "$scratch/discover"; dmesg | tail -n 5)"
    grep -q "$SUBSYSTEM" "$scratch/discover" && grep -qi "tls" "$scratch/discover" || die "$(cat "$scratch/discover")"
    stop_target
}
array() { # an array under load, whose server is killed: the host connects again under TLS
    local key
    new_subsystem
    key=$(new_key 1)
    kept "$key"
    kernel_has "$key"
    ram_members 3
    create 5 "${members[@]}"
    serve_encrypted
    connect --reconnect-delay 1 --ctrl-loss-tmo 120 --tls
    device_fio array --rw=randwrite --bs=16k --size=6M --time_based --runtime=8 & local load=$!
    sleep 2
    kill_server
    serve_encrypted
    wait $load || die "fio saw an error"
    disconnect
    stop_array
}
serve_encrypted() {
    TWILL_STATE_DIR=$scratch/state start_server array_answers --nvme-tcp 127.0.0.1 --nvme-nqn $SUBSYSTEM --reservations-new --tls-key "$HOST=$scratch/key" "${members[@]}"
}

kernel_target() { # TSAS: nvmet serves /dev/ram4 to /dev/ram6
    local i
    for i in 1 2 3; do
        mkdir -p "$NVMET/subsystems/nqn.2026-11.test:t$i/namespaces/1"
        echo 1 >"$NVMET/subsystems/nqn.2026-11.test:t$i/attr_allow_any_host"
        echo -n /dev/ram$((i + 3)) >"$NVMET/subsystems/nqn.2026-11.test:t$i/namespaces/1/device_path"
        echo 1 >"$NVMET/subsystems/nqn.2026-11.test:t$i/namespaces/1/resv_enable"
        echo 1 >"$NVMET/subsystems/nqn.2026-11.test:t$i/namespaces/1/enable"
    done
    mkdir "$NVMET/ports/1"
    echo ipv4 >"$NVMET/ports/1/addr_adrfam"
    echo tcp >"$NVMET/ports/1/addr_trtype"
    echo 127.0.0.1 >"$NVMET/ports/1/addr_traddr"
    echo 4421 >"$NVMET/ports/1/addr_trsvcid"
    echo tls1.3 >"$NVMET/ports/1/addr_tsas" || skip "this kernel's target has no TLS"
    echo required >"$NVMET/ports/1/addr_treq"
    for i in 1 2 3; do ln -s "$NVMET/subsystems/nqn.2026-11.test:t$i" "$NVMET/ports/1/subsystems/"; done
}
remove_kernel_target() {
    local i
    for i in 1 2 3; do
        rm -f "$NVMET/ports/1/subsystems/nqn.2026-11.test:t$i"
        echo 0 >"$NVMET/subsystems/nqn.2026-11.test:t$i/namespaces/1/enable"
        rmdir "$NVMET/subsystems/nqn.2026-11.test:t$i/namespaces/1" "$NVMET/subsystems/nqn.2026-11.test:t$i"
    done
    rmdir "$NVMET/ports/1"
}
kernel_members() { # members at the kernel's target, under TLS
    local key i identity=(--hostnqn $HOST)
    ram_members 7
    members=()
    key=$(new_key 1)
    kept "$key"
    for i in 1 2 3; do
        kernel_has "$key" nqn.2026-11.test:t$i
        members+=("nvme://127.0.0.1:4421/nqn.2026-11.test:t$i")
    done
    kernel_target
    export TWILL_STATE_DIR=$scratch/host
    mkdir -p "$TWILL_STATE_DIR"
    if "$TWILL" examine "${identity[@]}" "${members[0]}" >"$scratch/examined" 2>&1; then die "a host without TLS is served"; fi
    (umask 077; new_key 1 >"$scratch/other")
    if "$TWILL" examine "${identity[@]}" --tls-secret "$scratch/other" "${members[0]}" >"$scratch/examined" 2>&1; then die "a host with another key is served"; fi
    identity+=(--tls-secret "$scratch/key")
    "$TWILL" create --level 5 --chunk 64K --name vm --bitmap internal --assume-clean "${identity[@]}" "${members[@]}" >/dev/null || die "create"
    serve "${identity[@]}" "${members[@]}"
    small_writes
    stop_array
    unset TWILL_STATE_DIR
    remove_kernel_target
}

run_case "the kernel's host" kernel_host
run_case "the kernel's host with a key of SHA-384" larger_hash
run_case "a wrong key" wrong_key
run_case "discovery" discovered
run_case "an array whose server is killed under load" array
run_case "members at the kernel's target" kernel_members
summary
