# archive.sh: a private apt with its own lists and cache, for packages of another Debian suite than this machine's; fetch-kernel and
# fetch-mdadm source it. The archive's address is the one this machine already uses.
#
#   archive NAME SUITE     sets ${opts[@]} for apt-get and apt-cache, and gets the suite's lists; NAME is whose messages they are

cache=${VM_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/vm}

archive() { # NAME SUITE
    local name=$1 suite=$2 apt=$cache/apt/$2 release uri key
    mkdir -p "$apt/lists/partial" "$apt/archives/partial" "$apt/none"
    [[ $(. /etc/os-release; echo "$ID") == debian ]] ||
        { echo "$name: packages are fetched from a Debian archive, and this is not Debian" >&2; exit 1; }
    release=$(. /etc/os-release; echo "$VERSION_CODENAME")
    uri=$(apt-get indextargets --format '$(IDENTIFIER) $(RELEASE) $(REPO_URI)' |
        awk -v r="$release" '$1 == "Packages" && $2 == r { print $3; exit }')
    [[ -n $uri ]] || { echo "$name: no Debian archive for $release in this machine's apt sources" >&2; exit 1; }
    key=/usr/share/keyrings/debian-archive-keyring.gpg
    [[ -f $key ]] && key="[signed-by=$key] " || key=
    echo "deb $key$uri $suite main" >"$apt/sources.list"
    opts=(-qq -o Dir::Etc::SourceList="$apt/sources.list" -o Dir::Etc::SourceParts="$apt/none" -o Dir::Etc::Preferences=/dev/null
          -o Dir::Etc::PreferencesParts="$apt/none" -o Dir::State::Lists="$apt/lists" -o Dir::Cache="$apt"
          -o Dir::Cache::archives="$apt/archives" -o APT::Sandbox::User=root)
    apt-get "${opts[@]}" update >&2
}
