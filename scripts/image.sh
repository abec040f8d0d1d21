# shellcheck shell=bash
# The sandbox image: its base (pulled, or built from Debian's packages), its build, its removal.

PULLED_BASE=debian:bookworm-slim
BUILT_BASE=sandbox-server/base:bookworm
HASH_LABEL=sandbox-server.image-hash

image_exists() { docker image inspect "$1" >/dev/null 2>&1; }

image_hash() { { hash_of Dockerfile.sandbox .dockerignore server/guest && echo "${QUICKSTART_BASE_IMAGE:-}"; } | sha256sum | cut -c1-32; }

# Builds only when what goes into the image has changed; an equal image under another tag is only tagged.
need_image() {
    local hash same
    case ${SANDBOX_IMAGES:-$IMAGE} in *"$IMAGE"*) ;; *) return 0 ;; esac # the operator brings images of their own
    made image "$IMAGE"
    hash=$(image_hash)
    [ "$(docker image inspect -f "{{index .Config.Labels \"$HASH_LABEL\"}}" "$IMAGE" 2>/dev/null)" != "$hash" ] || return 0
    same=$(docker images -q --no-trunc --filter "label=$HASH_LABEL=$hash" | head -n 1)
    if [ -n "$same" ]; then
        docker tag "$same" "$IMAGE"
    else
        need_room "$(timeout 15 docker info --format '{{.DockerRootDir}}')"
        need_base
        step "Build the sandbox image $IMAGE" build_image "$hash" || die "The sandbox image could not be built." \
            "The lines above say why; without a network it cannot be built. See $LOG, then run this again."
    fi
}

build_image() {
    local args=(--network=host --build-arg "BASE_IMAGE=$BASE" --label "$HASH_LABEL=$1") name
    for name in http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY; do
        [ -z "${!name:-}" ] || args+=(--build-arg "$name")
    done
    timeout 1800 docker build "${args[@]}" -t "$IMAGE" -f Dockerfile.sandbox .
}

# Sets BASE.
need_base() {
    if [ -n "${QUICKSTART_BASE_IMAGE:-}" ]; then
        BASE=$QUICKSTART_BASE_IMAGE
        image_exists "$BASE" && return 0
        step "Pull $BASE" timeout 900 docker pull "$BASE" || die "The base image $BASE could not be pulled." \
            "Check its name and the network, or load it by hand (docker load), then run this again."
        made image "$BASE"
        return 0
    fi
    for BASE in "$PULLED_BASE" "$BUILT_BASE"; do
        image_exists "$BASE" && return 0
    done
    BASE=$PULLED_BASE
    if MAY_FAIL="no registry answers; building it from Debian's packages instead" \
        step "Pull $BASE" timeout 25 docker pull "$BASE"; then
        made image "$BASE"
        return 0
    fi
    BASE=$BUILT_BASE
    need_debootstrap
    step "Build the base image $BASE" build_base || die "The base image could not be built from Debian's packages." \
        "Without a network, load one by hand (docker load), name it in QUICKSTART_BASE_IMAGE, run this again." \
        "Behind a firewall, name a mirror in QUICKSTART_DEBIAN_MIRROR. Details: $LOG"
    made image "$BASE"
}

need_debootstrap() {
    is_root || die "No registry answers, and only root can build the base image from Debian's packages." \
        "Run this script once as root (./quickstart.sh image is enough), or load an image (docker load)" \
        "and name it: QUICKSTART_BASE_IMAGE=my/debian:12 ./quickstart.sh"
    local missing=()
    have debootstrap || missing+=(debootstrap)
    [ -e /usr/share/keyrings/debian-archive-keyring.gpg ] || missing+=(debian-archive-keyring)
    [ ${#missing[@]} -eq 0 ] || install_packages "${missing[@]}"
}

# The mirror that this machine's apt uses, where it is one of Debian; debootstrap knows its own default.
debian_mirror() {
    local site
    [ -z "${QUICKSTART_DEBIAN_MIRROR:-}" ] || { echo "$QUICKSTART_DEBIAN_MIRROR" && return; }
    grep -qx 'ID=debian' /etc/os-release 2>/dev/null || return 0
    site=$(host_sites | awk '$3 == "main" && $2 !~ /-/ { print $1; exit }')
    echo "${site%/}"
}

# shellcheck disable=SC2016 # apt's own placeholders
host_sites() { apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' 2>/dev/null; }

build_base() {
    local root=$OWN/base mirror rc=0
    mirror=$(debian_mirror)
    remove_tree "$root"
    timeout 1200 debootstrap --variant=minbase --keyring=/usr/share/keyrings/debian-archive-keyring.gpg \
        bookworm "$root" ${mirror:+"$mirror"} \
        && slim_down "$root" \
        && tar -C "$root" --exclude='./proc/*' --exclude='./sys/*' --exclude='./dev/*' --numeric-owner -c . \
        | timeout 300 docker import --change 'CMD ["bash"]' - "$BUILT_BASE" || rc=$?
    remove_tree "$root"
    return "$rc"
}

# What Debian's own slim image leaves out, here and in what is installed later; security updates where we know whence.
slim_down() {
    local kept='path-exclude /usr/share/doc/*\npath-include /usr/share/doc/*/copyright\npath-exclude /usr/share/man/*\n'
    kept+='path-exclude /usr/share/info/*\npath-exclude /usr/share/locale/*\npath-exclude /usr/share/groff/*\n'
    # shellcheck disable=SC2059 # the text is the format
    printf "$kept" >"$1/etc/dpkg/dpkg.cfg.d/slim" \
        && host_sites | awk '$3 == "main" && $2 ~ /^bookworm-(updates|security)$/ { print "deb", $1, $2, $3 }' \
            >>"$1/etc/apt/sources.list" \
        && rm -rf "$1"/var/cache/apt/archives/*.deb "$1"/var/lib/apt/lists/* "$1"/usr/share/{man,info,locale,groff}/* \
        && find "$1/usr/share/doc" -type f ! -name copyright -delete
}

# An interrupted debootstrap may leave /proc and /sys mounted inside.
remove_tree() {
    [ -e "$1" ] || return 0
    local mount
    for mount in "$1/proc" "$1/sys"; do
        if mountpoint -q "$mount"; then umount -l "$mount"; fi
    done
    rm -rf --one-file-system "$1"
}

# Our images; the base only when no other installation's image needs it any more.
remove_images() {
    if was_made image "$IMAGE"; then remove_image "$IMAGE"; fi
    [ -z "$(docker images -q sandbox-server/default)" ] || return 0
    local reference
    remove_image "$BUILT_BASE"
    while read -r reference; do remove_image "$reference"; done < <(sed -n 's/^image //p' "$OWN/made" 2>/dev/null)
}

remove_image() {
    image_exists "$1" || return 0
    if [ "$(docker image inspect -f '{{len .RepoTags}}' "$1")" -gt 1 ]; then
        docker image rm "$1" >/dev/null # only the name goes: others have names of their own for it
    elif [ -n "$(docker ps -aq --filter "ancestor=$1")" ]; then
        say "   The image $1 stays: containers that are not ours use it."
    else
        docker image rm "$1" >/dev/null || warn "The image $1 could not be removed."
    fi
}
