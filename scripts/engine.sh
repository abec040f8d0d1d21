# shellcheck shell=bash
# Docker Engine: find it, install it, start it where no init system does, and stop only what we started.

ENGINE_SETTINGS=/etc/docker/daemon.json

# Sets ENGINE_ERROR when it does not answer.
engine_answers() {
    have docker || { ENGINE_ERROR='no docker command' && return 1; }
    local rc=0
    ENGINE_ERROR=$(timeout 15 docker version --format '{{.Server.Version}}' 2>&1 >/dev/null) || rc=$?
    ENGINE_ERROR=${ENGINE_ERROR//$'\n'/ }
    return "$rc"
}

need_engine() {
    have docker || is_root || die "Docker is not installed, and only root can install it." \
        "Ask for: apt-get install docker.io && usermod -aG docker $(id -un)   (then log in again)" \
        "or run this script once as root."
    have docker || install_engine
    if ! engine_answers; then
        explain_refusal
        have dockerd || install_engine
        engine_answers || start_engine
    fi
    need_linux_engine
}

# Ends here unless starting an engine of our own is the right thing to do.
explain_refusal() {
    case $ENGINE_ERROR in
        *'permission denied'*) die "You may not use the Docker socket: $(id -un) is not in the group docker." \
            "As root: usermod -aG docker $(id -un)   then log in again (or: newgrp docker)." ;;
    esac
    [ -z "${DOCKER_HOST:-}" ] || die "No Docker Engine answers at $DOCKER_HOST (${ENGINE_ERROR:-no answer in 15 s})." \
        "Start it, or correct DOCKER_HOST / SANDBOX_DOCKER_HOST (remembered in $STATE/env), then run this again."
    is_root || die "Docker Engine is not running (${ENGINE_ERROR:-no answer in 15 s})." \
        "Ask for: systemctl start docker   or run this script once as root."
    if [ -n "$(pgrep -x dockerd 2>/dev/null)" ]; then
        die "Docker Engine runs but does not answer (${ENGINE_ERROR:-no answer in 15 s})." \
            "Look at its log (journalctl -u docker), restart it, then run this again."
    fi
}

need_linux_engine() {
    local os
    os=$(timeout 15 docker version --format '{{.Server.Os}}')
    [ "$os" = linux ] || die "The Docker Engine runs $os containers." "Use one that runs Linux containers."
}

# With live-restore a restart or an upgrade of the engine leaves sandboxes alone. Settings that are there are the operator's.
make_engine_settings() {
    [ ! -e "$ENGINE_SETTINGS" ] || return 0
    mkdir -p "${ENGINE_SETTINGS%/*}"
    made file "$ENGINE_SETTINGS"
    printf '{"live-restore": true}\n' >"$ENGINE_SETTINGS"
}

remove_engine_settings() {
    was_made file "$ENGINE_SETTINGS" && [ "$(cat "$ENGINE_SETTINGS" 2>/dev/null)" = '{"live-restore": true}' ] || return 0
    rm -f "$ENGINE_SETTINGS"
}

# Newer Debian releases have the client in a package of its own.
install_engine() {
    make_engine_settings
    local packages=(docker.io)
    if apt-cache show docker-cli >/dev/null 2>&1; then packages+=(docker-cli); fi
    if [ "$(cat /sys/module/apparmor/parameters/enabled 2>/dev/null)" = Y ] && ! have apparmor_parser; then
        packages+=(apparmor)
    fi
    install_packages "${packages[@]}"
    have docker || install_packages docker-cli
}

start_engine() {
    made engine
    local hint="See $OWN/dockerd.log. In a container, Docker needs the host's --privileged."
    if [ -d /run/systemd/system ]; then
        step "Start Docker Engine" systemctl start docker || die "Docker Engine did not start." "journalctl -u docker"
        echo systemd >"$OWN/dockerd.pid"
        return
    fi
    if ! mountpoint -q /sys/fs/cgroup; then
        have cgroupfs-mount || install_packages cgroupfs-mount
        step "Mount the cgroup filesystems" cgroupfs-mount || die "The cgroup filesystems could not be mounted." "$hint"
    fi
    step "Start Docker Engine" start_dockerd || die "Docker Engine did not start." "$hint"
}

start_dockerd() {
    local options=()
    # Said twice, in its file and here, dockerd would not start.
    if have crun && ! grep -qs '"runtimes"' /etc/docker/daemon.json; then
        options+=(--add-runtime "crun=$(command -v crun)")
    fi
    spawn dockerd dockerd "${options[@]}"
    local deadline=$((SECONDS + 60))
    until engine_answers; do
        is_alive dockerd && [ "$SECONDS" -lt "$deadline" ] || { tail -n 15 "$OWN/dockerd.log" && return 1; }
        sleep 0.3
    done
}

we_started_engine() { [ "$(cat "$OWN/dockerd.pid" 2>/dev/null)" = systemd ] || is_alive dockerd; }

sandboxes_outlive_engine() { [ "$(timeout 15 docker info --format '{{.LiveRestoreEnabled}}' 2>/dev/null)" = true ]; }

stop_engine() {
    we_started_engine || return 0
    if [ "$(cat "$OWN/dockerd.pid")" = systemd ]; then
        systemctl stop docker.socket docker 2>/dev/null || true
        rm -f "$OWN/dockerd.pid"
    else
        stop_process dockerd 60
    fi
}
