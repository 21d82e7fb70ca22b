#!/bin/sh
# Functions for the scripts of the package mcrengine-node. deploy/packages.sh copies this file to the beginning of
# each script, and replaces UNITS in the next line by the names of all systemd units.
units="@UNITS@"

# Succeeds if systemd runs. In a container, or while an image is built, systemd does not run.
systemd_runs() { [ -d /run/systemd/system ] && command -v systemctl >/dev/null 2>&1; }

# Makes systemd read the unit files again.
reload() { if systemd_runs; then systemctl daemon-reload || true; fi; }

# Makes the system user of mcr gate, and the directory /etc/mcr/gate. If these systemd commands do not exist, the
# administrator of an aggregator node must make both by hand.
make_user_of_gate() {
    if command -v systemd-sysusers >/dev/null 2>&1; then systemd-sysusers mcr-gate.conf || true; fi
    if command -v systemd-tmpfiles >/dev/null 2>&1; then systemd-tmpfiles --create mcr-gate.conf || true; fi
}

# Restarts each running daemon with the new version. Workers of running jobs continue, because of KillMode=process.
restart_if_active() {
    systemd_runs || return 0
    for unit in $units; do
        case $unit in *.service) systemctl try-restart "$unit" || true ;; esac
    done
}

# Stops the daemons, and prevents their start at the next boot. Workers of running jobs continue.
stop_and_disable() {
    # shellcheck disable=SC2086 # the names of the units have no spaces
    if systemd_runs; then systemctl stop $units || true; fi
    # shellcheck disable=SC2086
    if command -v systemctl >/dev/null 2>&1; then systemctl --no-reload disable $units >/dev/null 2>&1 || true; fi
    # If systemctl does not exist, no other program removes the links that enable the units.
    for unit in $units; do rm -f /etc/systemd/system/*.wants/"$unit"; done
}

