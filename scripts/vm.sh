# shellcheck shell=bash
# `./quickstart.sh test vm`: the disk of a Debian 13 machine, and the tests that boot it under QEMU.
# Whatever the machine installs is put into its disk from outside: only the tests themselves may run emulated.

VM_RELEASE=trixie VM_PYTHON=3.13
VM_PUT_IN=/srv/put-in # in the machine: packages, wheels, the sandbox image
# What a server with Debian has.
VM_PACKAGES='systemd-sysv systemd-resolved systemd-timesyncd linux-image-cloud-amd64 initramfs-tools udev dbus polkitd
    apparmor openssh-server iproute2 iputils-ping python3 git sudo ca-certificates procps less kmod e2fsprogs'
# What quickstart and the ten commands of docs/operations.md install; openssl makes the certificate in certbot's place.
VM_LATER='docker.io docker-cli btrfs-progs python3-venv curl nginx certbot openssl'

test_vm() {
    local place=${QUICKSTART_VM_DIR:-/var/cache/sandbox-server-vm}
    is_root || die "The machine's disk is made by root." "Run this as root."
    forget_settings
    make_test_state
    open_state
    prepare dev
    have qemu-system-x86_64 || install_packages qemu-system-x86
    have qemu-img || install_packages qemu-utils
    have mmdebstrap || install_packages mmdebstrap
    have ssh || install_packages openssh-client
    [ -e /usr/share/keyrings/debian-archive-keyring.gpg ] || install_packages debian-archive-keyring
    need_disk "$place"
    release_lock
    forget_settings
    QUICKSTART_VM_DIR=$place "$VENV/bin/python" -m pytest --basetemp="$TEST_STATE/pytest" --capture=no --verbose \
        --tb=short --timeout=7200 --durations=0 --durations-min=10 \
        tests/hosts/vm/checks_{quickstart,sandbox,units,reboot}.py "$@"
}

# A disk is kept until something that goes into it has changed; a run writes to an overlay of its own.
need_disk() {
    local place=$1 wants
    wants=$(hash_of scripts/vm.sh tests/hosts/vm/files requirements.txt requirements-dev.txt client/pyproject.toml)-$(image_hash)
    [ "$(cat "$place/made-from" 2>/dev/null)" != "$wants" ] || return 0
    mkdir -p "$place"
    remove_tree "$place/root"
    rm -f "$place"/{made-from,disk.raw,vmlinuz,initrd}
    need_room "$place"
    if ! { step "Make the root filesystem of Debian $VM_RELEASE" make_root "$place" \
        && step "Put packages, Python packages and the sandbox image in" put_in "$place" \
        && step "Make the disk" make_disk "$place"; }; then
        die "The machine's disk could not be made." "The lines above say why. See $LOG, then run this again."
    fi
    echo "$wants" >"$place/made-from"
}

# A mirror may be one of a day long past: how old its lists are is no concern here.
make_root() {
    local root=$1/root sources=() name
    vm_sources >"$1/sources.list"
    [ ! -s "$1/sources.list" ] || sources=("$1/sources.list")
    # shellcheck disable=SC2016,SC2086 # mmdebstrap's own variables; names, each a word
    timeout 1800 mmdebstrap --mode=root --variant=important --include="$(echo $VM_PACKAGES | tr ' ' ,)" \
        --keyring=/usr/share/keyrings/debian-archive-keyring.gpg --aptopt='Acquire::Check-Valid-Until "false"' \
        --aptopt='APT::Install-Recommends "false"' --dpkgopt='path-exclude=/usr/share/man/*' \
        --customize-hook='APT_CONFIG=$MMDEBSTRAP_APT_CONFIG apt-get install --yes --download-only -o APT::Install-Recommends=true '"${VM_LATER//$'\n'/ }" \
        --customize-hook="mkdir -p \"\$1$VM_PUT_IN/packages\" && mv \"\$1\"/var/cache/apt/archives/*.deb \"\$1$VM_PUT_IN/packages\"" \
        "$VM_RELEASE" "$root" "${sources[@]}" || return
    rm -f "$root"/etc/apt/apt.conf.d/99mmdebstrap "$root"/etc/apt/sources.list.d/*
    for name in systemd-networkd systemd-resolved ssh; do chroot "$root" systemctl enable "$name" || return; done
}

# The mirrors of this machine's apt; nothing where it is none of Debian: mmdebstrap knows its own.
vm_sources() {
    local mirror security
    mirror=$(debian_mirror)
    [ -n "$mirror" ] || return 0
    printf 'deb %s %s main\n' "$mirror" "$VM_RELEASE" "$mirror" "$VM_RELEASE-updates"
    security=$(host_sites | awk '$3 == "main" && $2 ~ /-security$/ { print $1; exit }')
    [ -z "$security" ] || echo "deb $security $VM_RELEASE-security main"
}

put_in() {
    local root=$1/root
    local inside=$root$VM_PUT_IN
    write_packages_list "$inside/packages" \
        && echo "deb [trusted=yes] file:$VM_PUT_IN/packages ./" >"$root/etc/apt/sources.list" \
        && timeout 900 "$VENV/bin/python" -m pip download --quiet --only-binary=:all: --python-version "$VM_PYTHON" \
            --platform manylinux2014_x86_64 --platform manylinux_2_28_x86_64 --dest "$inside/wheels" \
            -r requirements-dev.txt 'setuptools>=77' \
        && printf '[global]\nno-index = true\nfind-links = %s/wheels\n' "$VM_PUT_IN" >"$root/etc/pip.conf" \
        && timeout 600 docker save --output "$inside/sandbox-image.tar" "$IMAGE" \
        && cp -R tests/hosts/vm/files/. "$root" \
        && { [ -f "$1/key" ] || ssh-keygen -q -t ed25519 -N '' -f "$1/key"; } \
        && install -D -m 0600 "$1/key.pub" "$root/root/.ssh/authorized_keys" && chmod 0700 "$root/root/.ssh"
}

# An archive of packages, as apt reads it: no tool of Debian's is needed to write its list.
write_packages_list() {
    local deb
    for deb in "$1"/*.deb; do
        printf '%s\nFilename: ./%s\nSize: %s\nSHA256: %s\n\n' "$(dpkg-deb --field "$deb")" "${deb##*/}" \
            "$(stat -c %s "$deb")" "$(sha256sum "$deb" | cut -d' ' -f1)" || return
    done >"$1/Packages"
}

make_disk() {
    local root=$1/root
    cp "$root"/boot/vmlinuz-* "$1/vmlinuz" && cp "$root"/boot/initrd.img-* "$1/initrd" \
        && truncate -s 16G "$1/disk.raw" && timeout 900 mke2fs -q -t ext4 -F -d "$root" "$1/disk.raw" \
        && rm -rf --one-file-system "$root"
}
