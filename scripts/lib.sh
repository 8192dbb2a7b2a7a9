# Helpers of the scripts in this folder. Sourced, not run.

say() { printf '\n== %s\n' "$*"; }

step() {
  say "$1"
  shift
  local begun=$SECONDS
  "$@"
  echo "   ($((SECONDS - begun)) s)"
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

# Python packages go into a virtual environment of this checkout.
python_tools() {
  [ -x .venv/bin/schemathesis ] && return
  python3 -m venv .venv 2>/dev/null || { apt_install python3-venv; python3 -m venv .venv; }
  say "installing Python packages"
  .venv/bin/pip install --quiet --disable-pip-version-check 'schemathesis==4.32.5'
}
