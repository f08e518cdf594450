#!/usr/bin/env bash
# What the lock costs on a device: flash and RAM of this firmware with the lock, plain, fenced, with a line, and over TLS, minus
# those of the same firmware with one PING over the same sockets; and how deep the stack of each of them has been, over five Redis
# servers that it starts on the ports 17101 to 17105, and 17111 to 17115 for TLS. Prints Markdown tables, and the lines of the lock that could panic. Fails if
# there are any.

set -euo pipefail
here=$(dirname "$(realpath "${BASH_SOURCE[0]}")")
# By default, the folder in which the test suite builds the firmware too.
CARGO_TARGET_DIR=$(realpath --canonicalize-missing "${CARGO_TARGET_DIR:-$here/../../../target/firmware}")
export CARGO_TARGET_DIR
cd "$here"
# These settings are for the packages of the host.
export -n CARGO_BUILD_TARGET RUSTFLAGS CARGO_ENCODED_RUSTFLAGS

TARGETS=(thumbv7em-none-eabihf thumbv6m-none-eabi)
NODES=5
SHAPES=(ping lock fence queue tls)

declare -A FLASH RAM

# The firmware of the shape `tls` has the certificate of the CA in its flash.
CERTIFICATES=$CARGO_TARGET_DIR/certificates
export REDLOCK_TLS_CA=$CERTIFICATES/ca.der

main() {
    local target shape
    make_certificates
    for target in "${TARGETS[@]}"; do
        for shape in "${SHAPES[@]}"; do
            build "$target" --no-default-features --features "$shape"
            measure "$target" "$shape"
        done
    done
    print_table
    echo
    print_stacks
    echo
    build "${TARGETS[0]}"
    print_values
    echo
    print_panics
}

build() {
    local target=$1
    shift
    cargo build --quiet --release --target "$target" "$@"
}

image() { echo "$CARGO_TARGET_DIR/$1/release/redlock-mps2-an386"; }

# Flash is what is loaded: code, constants, and the values with which variables begin. RAM is the
# variables, of which the tasks are a part; the stack is not in it.
measure() {
    local target=$1 shape=$2 flash ram
    read -r flash ram < <(sections "$(image "$target")" | awk '
        $5 ~ /A/ && $2 == "PROGBITS" { flash += $4 }
        $5 ~ /WA/ { ram += $4 }
        END { print flash, ram }')
    FLASH[$target $shape]=$flash
    RAM[$target $shape]=$ram
}

# The sections of an ELF file: name, type, offset, size, flags.
sections() {
    local name type offset size flags
    readelf --wide --section-headers "$1" |
        sed -nE 's/^ *\[ *[0-9]+\] +(\.[^ ]+) +([A-Z_]+) +[0-9a-f]+ ([0-9a-f]+) ([0-9a-f]+) [0-9a-f]+ +([A-Z]+) .*/\1 \2 \3 \4 \5/p' |
        while read -r name type offset size flags; do
            echo "$name $type $((16#$offset)) $((16#$size)) $flags"
        done
}

print_table() {
    local target
    echo "| bytes | flash without the lock | flash with it | the lock's flash | RAM without the lock | RAM with it | the lock's RAM | the lock's RAM per node |"
    echo "|---|---|---|---|---|---|---|---|"
    for target in "${TARGETS[@]}"; do
        print_row "$target" lock "$target"
        print_row "$target" fence "fenced"
        print_row "$target" queue "with a line"
        print_row "$target" tls "over TLS"
    done
}

print_row() {
    local target=$1 shape=$2 name=$3
    local flash=${FLASH[$target ping]} flash_lock=${FLASH[$target $shape]}
    local ram=${RAM[$target ping]} ram_lock=${RAM[$target $shape]}
    local lock=$((flash_lock - flash)) plain=$((FLASH[$target lock] - flash)) ratio=""
    if [[ $shape != lock ]]; then
        ratio=", $((100 * lock / plain)) %"
    fi
    echo "| $name | $flash | $flash_lock | **$lock**$ratio | $ram | $ram_lock |" \
        "**$((ram_lock - ram))** | **$(((ram_lock - ram + NODES - 1) / NODES))** |"
}

# The stack is painted at the start, and what is left of the paint is counted at the end. It includes the network stack and the
# interrupts.
print_stacks() {
    local shape name bytes
    start_servers
    echo "| stack, ${TARGETS[0]} | bytes |"
    echo "|---|---|"
    for shape in "${SHAPES[@]}"; do
        case $shape in
            ping) name="one PING, without the lock" ;;
            lock) name="plain" ;;
            fence) name="fenced" ;;
            queue) name="with a line" ;;
            tls) name="over TLS" ;;
        esac
        build "${TARGETS[0]}" --no-default-features --features "$shape,stack"
        if ! bytes=$(emulate | sed -n 's/^stack=//p'); then
            echo "sizes.sh: the firmware '$shape' has failed" >&2
            return 1
        fi
        echo "| $name | $bytes |"
    done
    stop_servers
}

# A CA, and a certificate of the name that the firmware expects. They stay, so that cargo does not rebuild.
make_certificates() {
    [[ -e $REDLOCK_TLS_CA ]] && return
    mkdir -p "$CERTIFICATES"
    (
        cd "$CERTIFICATES"
        key=(-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -sha256)
        openssl req -x509 "${key[@]}" -keyout ca.key -out ca.pem -days 36500 -subj "/CN=the CA of a test"
        openssl req "${key[@]}" -keyout server.key -out server.csr -subj "/CN=redis.example"
        openssl x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 36500 -sha256 \
            -extfile <(echo "subjectAltName=DNS:redis.example") -out server.pem
        # Last, because the others are there if it is.
        openssl x509 -in ca.pem -outform DER -out ca.der
    ) 2>/dev/null
}

SERVERS=()

start_servers() {
    local port
    trap stop_servers EXIT
    for port in 17101 17102 17103 17104 17105; do
        redis-server --port "$port" --bind 127.0.0.1 --save "" --maxmemory-policy noeviction \
            --tls-port $((port + 10)) --tls-auth-clients no --tls-ca-cert-file "$CERTIFICATES/ca.pem" \
            --tls-cert-file "$CERTIFICATES/server.pem" --tls-key-file "$CERTIFICATES/server.key" >/dev/null &
        SERVERS+=($!)
    done
    for port in 17101 17102 17103 17104 17105; do
        timeout 20 bash -c "until redis-cli -p $port ping; do sleep 0.1; done" &>/dev/null
    done
    # Another server on one of these ports would end ours.
    kill -0 "${SERVERS[@]}"
}

stop_servers() {
    if [[ ${#SERVERS[@]} != 0 ]]; then
        kill "${SERVERS[@]}" || true
        wait "${SERVERS[@]}" || true
        SERVERS=()
    fi
}

# Runs the firmware that was built last for the first target. The arguments are those of the firmware.
emulate() {
    local arguments=""
    if (($# > 0)); then
        arguments=$(printf ',arg=%s' "$@")
    fi
    timeout 60 qemu-system-arm -machine mps2-an386 -nodefaults \
        -display none -monitor none -serial none -nic user,model=lan9118 \
        -semihosting-config "enable=on,target=native,arg=firmware$arguments" \
        -kernel "$(image "${TARGETS[0]}")"
}

# As the firmware sees them.
print_values() {
    local name bytes
    echo "| value | bytes |"
    echo "|---|---|"
    while IFS='=' read -r name bytes; do
        case $name in
            redlock) name="\`Redlock\` over references to $NODES nodes" ;;
            node) name="one \`TcpNode\` of them" ;;
            acquire) name="the future of \`acquire\`" ;;
        esac
        echo "| $name | $bytes |"
    done < <(emulate scenario=sizes nodes=1:2:3:4:5 control=6)
}

# In the firmware with all scenarios, whose panics say where they were: that text is looked for.
print_panics() {
    local panics=() bodies=0 place path line column code before
    while IFS=: read -r path line column; do
        code=$(sed -n "${line}p" "$path" | cut -c "$column-")
        # An async function panics if it is polled after its end. No code does that.
        before=$(sed -n "${line}p" "$path")
        before=${before:0:column-1}
        if [[ $code == "{"* || $code == async* || $before =~ async\ \|[a-z_]*\|\ $ ]]; then
            bodies=$((bodies + 1))
        else
            panics+=("$path:$line:$column: $code")
        fi
    done < <(panic_locations "$(image "${TARGETS[0]}")" | grep -E '/redlock-(core|embassy|embassy-tls)/src/' | sort -u)
    if [[ $bodies == 0 ]]; then
        echo "sizes.sh: found not even the async functions; has the layout of panic locations changed?" >&2
        return 1
    fi
    if [[ ${#panics[@]} == 0 ]]; then
        echo "No line of redlock-core and redlock-embassy can panic."
        return
    fi
    echo "These lines can panic:"
    for place in "${panics[@]}"; do
        echo "$place"
    done
    return 1
}

# Finds every core::panic::Location among the constants: address and length of a path, line, column.
panic_locations() {
    local image=$1 name offset size address
    read -r name _ offset size _ < <(sections "$image" | grep '^\.rodata ')
    address=$(readelf --wide --section-headers "$image" |
        sed -nE 's/^ *\[ *[0-9]+\] +\.rodata +[A-Z]+ +([0-9a-f]+) .*/\1/p')
    [[ $name && $address ]]
    od -An -v -tu1 -w1 -j "$offset" -N "$size" "$image" | awk -v base=$((16#$address)) '
        { byte[NR - 1] = $1 }
        END {
            for (at = 0; at + 16 <= NR; at += 4) {
                start = word(at) - base; len = word(at + 4); line = word(at + 8); column = word(at + 12)
                if (start < 0 || len < 4 || len > 300 || start + len > NR) continue
                if (line < 1 || line > 100000 || column < 1 || column > 1000) continue
                path = text(start, len)
                if (path ~ /\.rs$/) print path ":" line ":" column
            }
        }
        function word(at) {
            return byte[at] + byte[at + 1] * 256 + byte[at + 2] * 65536 + byte[at + 3] * 16777216
        }
        function text(at, len,    i, result) {
            for (i = 0; i < len; i++) result = result sprintf("%c", byte[at + i])
            return result
        }'
}

main "$@"
