#!/bin/bash
# tls.sh: NBD over TLS with the clients people use: right, wrong, revoked and no certificates, renewed ones, and no TLS at all.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../../scripts/array.sh"

authority() { # NAME: makes $scratch/NAME/ca-cert.pem and the folders server and client beside it, as nbdkit and QEMU read them
    local folder=$scratch/$1 who; mkdir -p "$folder/server" "$folder/client"
    # The same name for each authority: clients send their certificate to one that bears the name.
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj "/CN=authority" \
        -keyout "$folder/ca-key.pem" -out "$folder/ca-cert.pem" 2>/dev/null
    for who in server client; do
        openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/CN=$who" -keyout "$folder/$who/$who-key.pem" \
            -out "$folder/$who.csr" 2>/dev/null
        printf 'basicConstraints=CA:FALSE\nextendedKeyUsage=%sAuth\nsubjectAltName=DNS:localhost,IP:127.0.0.1\n' $who >"$folder/$who.ext"
        openssl x509 -req -in "$folder/$who.csr" -CA "$folder/ca-cert.pem" -CAkey "$folder/ca-key.pem" -CAcreateserial -days 2 \
            -extfile "$folder/$who.ext" -out "$folder/$who/$who-cert.pem" 2>/dev/null
        cp "$folder/ca-cert.pem" "$folder/$who/"
    done
}

revoke() { # NAME: the authority takes its client's certificate back
    local folder=$scratch/$1
    touch "$folder/index"; echo 01 >"$folder/number"
    printf '[ca]\ndefault_ca=all\n[all]\ndatabase=%s/index\ncrlnumber=%s/number\ndefault_md=sha256\ndefault_crl_days=2\n' "$folder" "$folder" >"$folder/ca.conf"
    local -a ca=(openssl ca -config "$folder/ca.conf" -cert "$folder/ca-cert.pem" -keyfile "$folder/ca-key.pem")
    "${ca[@]}" -revoke "$folder/client/client-cert.pem" 2>/dev/null
    "${ca[@]}" -gencrl -out "$folder/server/ca-crl.pem" 2>/dev/null
}

# Over TCP: of a unix socket libnbd does not ask which server is behind it.
encrypted() { echo "nbds://localhost:$port/?tls-certificates=$scratch/$1/client"; } # NAME

array() { # OPTION…: serves an array of four members over TLS
    command -v openssl >/dev/null || skip "openssl is not installed"
    make_members 4 24M
    authority right; authority wrong
    "$TWILL" create --level 5 --chunk 64K --name safe --assume-clean "${members[@]}" >/dev/null
    start_server tls_answers --unix "$socket" --tcp 127.0.0.1:0 --tls-certs "$scratch/right/server" "$@" "${members[@]}"
}
tls_answers() {
    port=$("$TWILL" detail --json --control "$control" 2>/dev/null | jq -r '.exports[]?.uri' | sed -n 's/^nbds*:.*://p')
    [[ -n $port ]] && nbdinfo --size "$(encrypted right)" >/dev/null 2>&1
}

refused() { # WORD COMMAND…: fails within a moment, and the reason has this word
    local word=$1 code=0; shift
    timeout 20 "$@" >"$scratch/said" 2>&1 || code=$?
    ((code != 0 && code != 124)) || die "not refused (status $code): $*"
    grep -qiE "$word" "$scratch/said" || die "refused for another reason than $word: $(cat "$scratch/said")"
}

data_comes_and_goes() {
    array --tls-verify-peer
    local socket_uri="nbds+unix:///?socket=$socket&tls-certificates=$scratch/right/client"
    nbdinfo --size "$socket_uri" >/dev/null
    local uri; uri=$(encrypted right)
    nbdinfo "$uri" | grep -q 'with TLS' || die "nbdinfo sees no TLS"
    [[ $("$TWILL" detail --json --control "$control" | jq -r '.exports[0].uri') == nbds+unix://* ]] || die "detail does not say nbds"
    local size; size=$(array_size)
    head -c "$size" /dev/urandom >"$scratch/in"
    nbdcopy --flush --connections=4 --requests=64 "$scratch/in" "$uri"
    nbdcopy --connections=4 --requests=64 "$uri" "$scratch/out"
    cmp "$scratch/in" "$scratch/out"
    fail_member "${members[0]}"
    nbdcopy --connections=1 --requests=1 --request-size=4096 "$uri" - | cmp - "$scratch/in"
    stop_array
}

refused_without_proof() {
    array --tls-verify-peer
    mkdir "$scratch/none"; mkdir "$scratch/none/client"; cp "$scratch/right/ca-cert.pem" "$scratch/none/client"
    refused 'alert|certificate' nbdinfo --size "$(encrypted none)"
    # A certificate of another authority with the same name, shown to the right server.
    cp "$scratch/right/ca-cert.pem" "$scratch/wrong/client/"
    refused 'alert|certificate' nbdinfo --size "$(encrypted wrong)"
    refused 'TLS' nbdinfo --size "$uri"
    nbdinfo --size "$(encrypted right)" >/dev/null
    grep -qE 'peer sent no certificates|invalid peer certificate' "$scratch/server.log" || die "the log does not say why"
    if grep -q 'PRIVATE KEY' "$scratch/server.log"; then die "a key is in the log"; fi
    stop_array
}

a_false_server_is_refused() {
    array
    cp "$scratch/wrong/ca-cert.pem" "$scratch/right/client/"
    refused 'certificate' nbdinfo --size "$(encrypted right)"
    cp "$scratch/right/ca-cert.pem" "$scratch/right/client/"
    # Without --tls-verify-peer the server asks for no certificate.
    mkdir -p "$scratch/none/client"; cp "$scratch/right/ca-cert.pem" "$scratch/none/client"
    nbdinfo --size "$(encrypted none)" >/dev/null
    stop_array
}

qemu_over_tls() {
    command -v qemu-io >/dev/null || skip "qemu-io is not installed"
    array --tls-verify-peer
    local place="driver=nbd,host=localhost,port=$port,tls-creds=tls0,export=safe"
    local proof="tls-creds-x509,id=tls0,endpoint=client,dir=$scratch"
    qemu-io --object "$proof/right/client" --image-opts "$place" -c 'write -P 1 0 2M' -c 'write -f -P 2 64k 4k' -c 'write -z 128k 64k' \
        -c 'aio_write -P 3 2M 1M' -c 'aio_write -P 4 3M 1M' -c 'aio_flush' -c 'read -P 1 0 64k' -c 'read -P 2 64k 4k' \
        -c 'read -P 0 128k 64k' -c 'read -P 3 2M 1M' -c 'read -P 4 3M 1M' >"$scratch/log" 2>&1 || die "qemu-io: $(cat "$scratch/log")"
    if grep -iE 'failed|error|verification' "$scratch/log"; then die "qemu-io: $(cat "$scratch/log")"; fi
    cp "$scratch/right/ca-cert.pem" "$scratch/wrong/client/"
    refused 'certificate|TLS' qemu-img info --object "$proof/wrong/client" --image-opts "$place"
    refused 'TLS' qemu-img info --image-opts "driver=nbd,path=$socket,export=safe"
    qemu-img info --object "$proof/right/client" --image-opts "$place" >/dev/null
    stop_array
}

nbdkit_over_tls() {
    command -v nbdkit >/dev/null || skip "nbdkit is not installed"
    nbdkit nbd --version >/dev/null 2>&1 || skip "nbdkit has no nbd plugin"
    array --tls-verify-peer
    head -c 1M /dev/urandom >"$scratch/in"
    nbdkit -U - nbd hostname=localhost port="$port" export=safe tls=require tls-certificates="$scratch/right/client" \
        --run "nbdcopy --flush '$scratch/in' \"\$uri\" && nbdcopy \"\$uri\" '$scratch/out'"
    cmp -n 1048576 "$scratch/in" "$scratch/out"
    refused 'TLS' nbdkit -U - nbd socket="$socket" export=safe tls=off --run 'nbdinfo --size "$uri"'
    stop_array
}

optional_tls() {
    array --tls on
    nbdinfo --size "$uri" >/dev/null
    nbdinfo "$(encrypted right)" | grep -q 'with TLS' || die "no TLS although it is offered"
    stop_array
    serve --tls off --tls-certs "$scratch/right/server" "${members[@]}"
    refused 'TLS' nbdinfo --size "nbds+unix:///?socket=$socket&tls-certificates=$scratch/right/client"
    stop_array
}

renewed_certificates_count_at_once() {
    array --tls-verify-peer
    nbdinfo --size "$(encrypted right)" >/dev/null
    cp "$scratch/wrong/server/server-cert.pem" "$scratch/right/server/" # and its key not yet
    nbdinfo --size "$(encrypted right)" >/dev/null
    grep -q 'goes on with the certificates that were read before' "$scratch/server.log" || die "the log does not say so"
    cp "$scratch/wrong/server/"*.pem "$scratch/right/server/"
    nbdinfo --size "$(encrypted wrong)" >/dev/null
    refused 'certificate|alert' nbdinfo --size "$(encrypted right)"
    stop_array
}

revoked_certificates() {
    array --tls-verify-peer
    nbdinfo --size "$(encrypted right)" >/dev/null
    revoke right
    refused 'alert|certificate' nbdinfo --size "$(encrypted right)"
    grep -q 'Revoked' "$scratch/server.log" || die "the log does not say that it is revoked"
    stop_array
}

useless_files() {
    command -v openssl >/dev/null || skip "openssl is not installed"
    make_members 4 24M
    authority right; authority wrong
    "$TWILL" create --level 5 --chunk 64K --name safe --assume-clean "${members[@]}" >/dev/null
    local before certs=$scratch/right/server; before=$(sha256sum "${members[@]}")
    no_start() { refused "$1" "$TWILL" serve --control "$control" --unix "$socket" "${@:2}" "${members[@]}"; }
    no_start 'nowhere/server-cert.pem: No such file' --tls-certs "$scratch/nowhere"
    no_start 'tls-certs FOLDER' --tls require
    no_start 'tls-certs' --tls-verify-peer
    cp "$certs/server-key.pem" "$scratch/key"
    cp "$scratch/wrong/server/server-key.pem" "$certs/"
    no_start 'server-key.pem: it cannot be used with server-cert.pem' --tls-certs "$certs"
    openssl pkcs8 -topk8 -passout pass:secret -in "$scratch/key" -out "$certs/server-key.pem"
    no_start 'has a password' --tls-certs "$certs"
    echo hello >"$certs/server-key.pem"
    no_start 'no private key in it' --tls-certs "$certs"
    cp "$scratch/key" "$certs/server-key.pem"
    rm "$certs/ca-cert.pem"
    no_start 'ca-cert.pem' --tls-certs "$certs" --tls-verify-peer
    [[ $before == "$(sha256sum "${members[@]}")" ]] || die "a refusal changed a member"
}

run_case "nbdcopy over TLS" data_comes_and_goes
run_case "clients without proof" refused_without_proof
run_case "a server that is another" a_false_server_is_refused
run_case "QEMU over TLS" qemu_over_tls
run_case "nbdkit's plugin over TLS" nbdkit_over_tls
run_case "TLS for those who want it, and none" optional_tls
run_case "renewed certificates" renewed_certificates_count_at_once
run_case "revoked certificates" revoked_certificates
run_case "files that are no use" useless_files
summary
