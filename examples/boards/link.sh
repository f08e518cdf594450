#!/usr/bin/env bash
# Links the firmware of each board in release, and prints how much flash and static RAM it takes.
#
# ./link.sh [--lint] [BOARD...]      --lint: checks format and lints instead. Without a board: all of them.
#
# The target folder is CARGO_TARGET_DIR, or the board's own if that is not set.

set -euo pipefail
here=$(dirname "$(realpath "${BASH_SOURCE[0]}")")

declare -A TARGETS=(
    [pico-w]=thumbv6m-none-eabi
    [nucleo-h563zi]=thumbv8m.main-none-eabihf
    [esp32-c6]=riscv32imac-unknown-none-elf
)
BOARDS=(pico-w nucleo-h563zi esp32-c6)

if [[ ${CARGO_TARGET_DIR-} ]]; then
    CARGO_TARGET_DIR=$(realpath --canonicalize-missing "$CARGO_TARGET_DIR")
    export CARGO_TARGET_DIR
fi
# Fixed values, so that cargo does not rebuild. No server has these addresses.
export WIFI_SSID=nowhere WIFI_PASSWORD=nobody-here
export REDLOCK_NODES=192.0.2.1:6379,192.0.2.2:6379,192.0.2.3:6379
# These settings are for the packages of the host.
unset CARGO_BUILD_TARGET RUSTFLAGS CARGO_ENCODED_RUSTFLAGS

main() {
    local work=link board
    if [[ ${1-} == --lint ]]; then
        work=lint
        shift
    fi
    for board in "${@:-${BOARDS[@]}}"; do
        [[ ${TARGETS[$board]-} ]] || fail "there is no board '$board', only ${BOARDS[*]}"
        need_target "${TARGETS[$board]}"
    done
    for board in "${@:-${BOARDS[@]}}"; do
        cd "$here/$board"
        target_dir=${CARGO_TARGET_DIR:-$here/$board/target}
        [[ $board != pico-w ]] || make_wifi_firmware
        "$work" "$board"
    done
}

link() {
    local board=$1
    cargo build --release --locked --quiet
    sections "$target_dir/${TARGETS[$board]}/release/redlock-$board" | awk -v board="$board" '
        # What is loaded: code, constants, and the values with which variables begin.
        $2 == "PROGBITS" { flash += $4 }
        # Variables, heaps, and code that is copied to RAM. The stack has the rest.
        $3 ~ /^(20|408)/ && $1 != ".stack" { ram += $4 }
        END { printf "%-14s flash %7d bytes   static RAM %7d bytes\n", board, flash, ram }'
}

lint() {
    cargo fmt --check
    cargo clippy --release --locked --quiet -- -D warnings
}

# The parts of an ELF file that are in the memory of the chip: name, type, address, size.
sections() {
    local name type address size
    readelf --wide --section-headers "$1" |
        sed -nE 's/^ *\[ *[0-9]+\] +(\.[^ ]+) +([A-Z_]+) +([0-9a-f]+) [0-9a-f]+ ([0-9a-f]+) [0-9a-f]+ +[A-Z]*A[A-Z]* .*/\1 \2 \3 \4/p' |
        while read -r name type address size; do
            echo "$name $type $address $((16#$size))"
        done
}

# Zeros with the size of the Wi-Fi firmware of the Pico W, which the repository does not include. They are enough to link.
make_wifi_firmware() {
    export CYW43_FIRMWARE=$target_dir/zeros
    trap 'rm -rf "$CYW43_FIRMWARE"' EXIT
    mkdir -p "$CYW43_FIRMWARE"
    truncate --size=231077 "$CYW43_FIRMWARE/43439A0.bin"
    truncate --size=984 "$CYW43_FIRMWARE/43439A0_clm.bin"
    truncate --size=742 "$CYW43_FIRMWARE/nvram_rp2040.bin"
    # A fixed date, so that cargo does not rebuild.
    touch --date=2000-01-01 "$CYW43_FIRMWARE"/*
}

need_target() {
    [[ -d $(rustc --print sysroot)/lib/rustlib/$1/lib ]] ||
        fail "the Rust target $1 is missing: rustup target add $1"
}

fail() {
    echo "link.sh: $*" >&2
    exit 1
}

main "$@"
