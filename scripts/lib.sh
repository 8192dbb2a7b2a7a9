# Helpers of the scripts in this folder. Sourced, not run.

say() { printf '\n== %s\n' "$*"; }

# step NAME COMMAND…: runs it, and remembers the name if it fails. The other steps are done all the same.
failed_steps=()
step() {
  local name=$1 begun=$SECONDS
  say "$name"
  shift
  if "$@"; then echo "   ($((SECONDS - begun)) s)"; else
    echo "   FAILED ($((SECONDS - begun)) s)"
    failed_steps+=("$name")
  fi
}

# beside FILE NAME COMMAND…: begins a step beside the next ones; its output goes to FILE.
beside() {
  beside_file=$1 beside_name=$2
  shift 2
  "$@" >"$beside_file" 2>&1 &
  beside_pid=$!
}

# joined: waits for the step that was begun beside others, and tells of it like of any other.
joined() { step "$beside_name" heard_of_it; }
heard_of_it() {
  local status=0
  wait "$beside_pid" || status=$?
  beside_pid=
  cat "$beside_file"
  return $status
}

# finish STARTED FILE: the last line, and the exit code. FILE names the tests that failed, one in a line.
finish() {
  local names line=""
  [ ${#failed_steps[@]} = 0 ] && { printf '\nscripts/test: all passed in %s s\n' $((SECONDS - $1)); return 0; }
  names=$([ -f "$2" ] && paste -sd, "$2" | sed 's/,/, /g') || names=
  for name in "${failed_steps[@]}"; do
    line+=", $name"
    [ "$name" = tests ] && line+=" ($names)"
  done
  printf '\nscripts/test: FAILED: %s\n' "${line#, }"
  return 1
}

# A folder for what lasts as long as the tests: in memory where there is room, so that no test waits for a disk that
# others keep busy. Tests run scripts of their own, which some systems forbid there.
roomy_memory() {
  local folder=/dev/shm most_mib=4096 probe=/dev/shm/everbeat-probe-$$
  if [ "$(df --output=avail -m $folder 2>/dev/null | tail -n 1)" -ge $most_mib ] 2>/dev/null &&
    printf '#!/bin/sh\n' >$probe && chmod +x $probe && $probe; then echo $folder; else echo "${TMPDIR:-/tmp}"; fi 2>/dev/null
  rm -f $probe
}

as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }

apt_install() {
  say "installing $*"
  export DEBIAN_FRONTEND=noninteractive
  as_root apt-get install -y --no-install-recommends "$@" >/dev/null 2>&1 ||
    { as_root apt-get update >/dev/null && as_root apt-get install -y --no-install-recommends "$@" >/dev/null; }
}

# need COMMAND PACKAGE: installs the Debian package when the command is missing.
need() {
  command -v "$1" >/dev/null 2>&1 || [ -n "$(ls /usr/lib/postgresql/*/bin/"$1" 2>/dev/null)" ] || apt_install "$2"
}

# need_file NAME PACKAGE: installs the Debian package when no such library is there.
need_file() {
  [ -n "$(find /usr/lib -name "$1" -print -quit 2>/dev/null)" ] || apt_install "$2"
}

pg_bin() {
  if command -v initdb >/dev/null 2>&1; then dirname "$(readlink -f "$(command -v initdb)")"; else ls -d /usr/lib/postgresql/*/bin | sort -V | tail -n 1; fi
}

# PostgreSQL refuses to run as root; its own user runs it then.
as_postgres() { if [ "$(id -u)" = 0 ]; then runuser -u postgres -- "$@"; else "$@"; fi; }

free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

# start_postgres FOLDER: a throw-away server; its address is in EVERBEAT_TEST_POSTGRES.
start_postgres() {
  local folder=$1/postgres bin port
  bin=$(pg_bin)
  port=$(free_port)
  mkdir -p "$folder"
  [ "$(id -u)" = 0 ] && chown postgres "$folder"
  as_postgres "$bin/initdb" -D "$folder/data" -U postgres -A trust -E UTF8 --locale=C >/dev/null
  as_postgres "$bin/pg_ctl" -D "$folder/data" -w -l "$folder/log" \
    -o "-p $port -c listen_addresses=127.0.0.1 -c unix_socket_directories=$folder -c max_connections=300" start >/dev/null
  export EVERBEAT_TEST_POSTGRES="postgres://postgres@127.0.0.1:$port/postgres"
  say "PostgreSQL on port $port"
}

stop_postgres() {
  [ -d "$1/postgres/data" ] && as_postgres "$(pg_bin)/pg_ctl" -D "$1/postgres/data" -m immediate stop >/dev/null 2>&1 || true
}

# listening PORT: waits until somebody listens there, for at most 10 seconds.
listening() {
  local try
  for try in $(seq 100); do
    (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null && return 0
    sleep 0.1
  done
  echo "nobody listens on port $1" >&2
  return 1
}

# start_redis FOLDER: a throw-away server; its address is in EVERBEAT_TEST_REDIS.
start_redis() {
  local folder=$1/redis port
  port=$(free_port)
  mkdir -p "$folder"
  redis-server --bind 127.0.0.1 --port "$port" --dir "$folder" --save "" --appendonly no --daemonize no \
    >"$folder/log" 2>&1 &
  echo $! >"$folder/pid"
  listening "$port" || { cat "$folder/log" >&2; return 1; }
  export EVERBEAT_TEST_REDIS="redis://127.0.0.1:$port"
  say "Redis on port $port"
}

# start_nats FOLDER: a throw-away server with JetStream; its address, with user and password, is in EVERBEAT_TEST_NATS.
start_nats() {
  local folder=$1/nats port
  port=$(free_port)
  mkdir -p "$folder"
  cat >"$folder/conf" <<CONF
listen: "127.0.0.1:$port"
jetstream { store_dir: "$folder/data" }
authorization { user: "tests", password: "not-a-secret" }
CONF
  nats-server -c "$folder/conf" >"$folder/log" 2>&1 &
  echo $! >"$folder/pid"
  listening "$port" || { cat "$folder/log" >&2; return 1; }
  export EVERBEAT_TEST_NATS="nats://tests:not-a-secret@127.0.0.1:$port"
  say "NATS on port $port"
}

# stop_started FOLDER: stops what start_redis and start_nats have started.
stop_started() {
  local file
  for file in "$1"/redis/pid "$1"/nats/pid; do
    [ -f "$file" ] && kill "$(cat "$file")" 2>/dev/null || true
  done
}

# Python packages go into a virtual environment of this checkout.
python_tools() {
  [ -x .venv/bin/schemathesis ] && return
  python3 -m venv .venv 2>/dev/null || { apt_install python3-venv; python3 -m venv .venv; }
  say "installing Python packages"
  .venv/bin/pip install --quiet --disable-pip-version-check 'schemathesis==4.32.5'
}
