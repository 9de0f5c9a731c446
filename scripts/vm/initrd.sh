# initrd.sh: the initial RAM disk of a machine: busybox, modules of a kernel, and an init. tests/boots and tests/clients source it.
#
#   busybox_initrd FILE KERNEL MODULE…    with the init from standard input; KERNEL is what fetch-kernel prints. The modules and what they
#                                         depend on lie in /modules, in the order of /modules.order

busybox_initrd() {
    local file=$1 kernel=$2 tree module name; shift 2
    tree=$(mktemp -d "$file.XXXXXX")
    mkdir -p "$tree"/{bin,dev,proc,sys,modules,disk}
    cp "$(command -v busybox)" "$tree/bin/busybox"
    cat >"$tree/init"
    chmod +x "$tree/init"
    # What is built into the kernel has no file.
    for module in "$@"; do modprobe -d "$kernel" -S "${kernel##*/}" --show-depends "$module" 2>/dev/null || true; done |
        awk '$1 == "insmod" && !seen[$2]++ { print $2 }' | while read -r module; do
            name=$(basename "${module%.xz}")
            xz -dc <"$module" >"$tree/modules/$name" 2>/dev/null || cp "$module" "$tree/modules/$name"
            echo "$name" >>"$tree/modules.order"
        done
    (cd "$tree" && find . | cpio -o -H newc --quiet | gzip -1) >"$file"
    rm -rf "$tree"
}
