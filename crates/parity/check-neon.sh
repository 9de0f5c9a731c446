#!/bin/sh
# Builds parity for 64-bit ARM and runs its tests, the NEON kernel's among them, under qemu-user.
#
# No cross toolchain needs to be installed: Debian's rustc-web (a current rustc with a standard library for each
# architecture) and the few files of libc and libgcc that linking and running need are unpacked below the target
# directory, about 600 MB, where later runs find them. rust-lld, which comes with rustc, links. Where something
# cannot be had, the script says "skipped: NEON: ..." and succeeds.
set -eu

cd "$(dirname "$0")"
target=aarch64-unknown-linux-gnu
base=${CARGO_TARGET_DIR:-../../target}/neon
mkdir -p "$base"
base=$(cd "$base" && pwd)
tools=$base/tools     # for this machine: rustc, and the standard library for both architectures
sysroot=$base/sysroot # for the target: libc, libgcc

main() {
    require_machine
    if [ ! -e "$base/complete" ]; then
        unpack_toolchain
        touch "$base/complete"
    fi
    run_tests
}

skip() {
    echo "skipped: NEON: $1"
    exit 0
}

require_machine() {
    case $(uname -m) in
    x86_64) ;;
    aarch64) skip "this machine is ARM, the plain tests run it" ;;
    *) skip "no cross build from $(uname -m)" ;;
    esac
    for program in apt-get dpkg-deb gcc; do
        command -v $program >/dev/null || skip "no $program"
    done
    linker=$(find "$(rustc --print sysroot)" -name rust-lld -type f | head -n 1)
    [ -n "$linker" ] || linker=$(command -v ld.lld) || skip "no rust-lld and no ld.lld"
}

# APT with lists of its own, so that the system's choice of architectures stays as it is.
apt() {
    command=$1
    shift
    timeout 300 "$command" -qq -o APT::Architectures::=amd64 -o APT::Architectures::=arm64 \
        -o Dir::State::Lists="$base/apt/lists" -o Dir::Cache="$base/apt/cache" \
        -o APT::Sandbox::User="$(id -un)" "$@" 2>"$base/apt/errors"
}

unpack_toolchain() {
    rm -rf "$base/apt" "$tools" "$sysroot"
    mkdir -p "$base/apt/lists/partial" "$base/apt/cache/archives/partial" "$base/apt/debs" "$tools" "$sysroot"
    apt apt-get update >/dev/null || skip "no package lists: $(tail -n 1 "$base/apt/errors")"
    version=$(apt apt-cache show rustc-web | sed -n 's/^Version: //p' | sort -rV | head -n 1)
    [ -n "$version" ] || skip "no rustc-web in the package lists, which may be out of reach"
    release=$(echo "$version" | cut -d. -f1,2)
    least=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' ../../Cargo.toml)
    [ "$(printf '%s\n' "$least" "$release" | sort -V | head -n 1)" = "$least" ] ||
        skip "rustc-web is $release, older than $least"
    llvm=$(apt apt-cache show "libstd-rust-web-$release" | sed -n 's/^Depends:.*\(libllvm[0-9]*\).*/\1/p' | head -n 1)
    gcc=$(gcc -dumpversion | cut -d. -f1)
    (
        cd "$base/apt/debs"
        apt apt-get download "rustc-web=$version" "libstd-rust-web-$release=$version" "$llvm" \
            "libstd-rust-web-dev=$version" "libstd-rust-web-dev:arm64=$version" \
            libc6:arm64 libc6-dev:arm64 libgcc-s1:arm64 "libgcc-$gcc-dev:arm64" >/dev/null
    ) || skip "no packages: $(tail -n 1 "$base/apt/errors")"
    for deb in "$base"/apt/debs/*_amd64.deb; do dpkg-deb -x "$deb" "$tools"; done
    for deb in "$base"/apt/debs/*_arm64.deb; do dpkg-deb -x "$deb" "$sysroot"; done
    mv "$sysroot/usr/lib/rustlib/$target" "$tools/usr/lib/rustlib/"
    rm -rf "$base/apt"
    cat >"$tools/rustc" <<EOF
#!/bin/sh
LD_LIBRARY_PATH=$tools/usr/lib/x86_64-linux-gnu exec $tools/usr/bin/rustc --sysroot $tools/usr "\$@"
EOF
    chmod +x "$tools/rustc"
    "$tools/rustc" --version >/dev/null 2>&1 || skip "rustc-web does not start: $("$tools/rustc" --version 2>&1 | tail -n 1)"
}

# The linker is called directly, so what a C compiler would add stands here.
run_tests() {
    libraries=$sysroot/usr/lib/aarch64-linux-gnu
    flags="-Dwarnings -Clinker-flavor=ld.lld -Clink-arg=--sysroot=$sysroot"
    flags="$flags -Clink-arg=--dynamic-linker=/lib/ld-linux-aarch64.so.1"
    for object in crt1.o crti.o crtn.o; do flags="$flags -Clink-arg=$libraries/$object"; done
    for directory in "$libraries" "$sysroot/lib/aarch64-linux-gnu" "$sysroot"/usr/lib/gcc/aarch64-linux-gnu/*; do
        flags="$flags -Clink-arg=-L$directory"
    done
    export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER="$linker"
    export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUSTFLAGS="$flags"
    export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64 -L $sysroot"
    export RUSTC="$tools/rustc" CARGO_TARGET_DIR="$base/target"
    set -- test --target "$target" --lib --tests --benches
    if command -v qemu-aarch64 >/dev/null; then
        cargo "$@"
    else
        cargo "$@" --no-run
        skip "tests are built, but no qemu-aarch64 to run them"
    fi
}

main
