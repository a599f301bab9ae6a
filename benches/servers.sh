# Sourced by what measures servers with VMs, after it has set `skep` and `images`. Leaves nothing.

die() { echo "bench: $*" >&2; exit 1; }
[ "$(id -u)" = 0 ] || die "VMs need root (namespaces, taps, cgroups); run it as root"

data=$(mktemp -d)
# The user of a server reaches its folder.
chmod 755 "$data"
declare -A servers=() urls=()
# One line about what is measured.
machine() {
  echo "$(nproc) processors, $(free -m | awk '/^Mem:/ { print $2 }') MiB, $("$skep" --version), load average $(cut -d' ' -f1-3 /proc/loadavg)"
}

# serve NAME OPTIONS...: starts a server, waits until it serves, and uses it.
serve() {
  local name=$1 url=
  shift
  "$skep" serve --data-dir "$data/$name" --image-dir "$images" --listen 127.0.0.1:0 "$@" >"$data/$name.log" 2>&1 &
  servers[$name]=$!
  while [ -z "$url" ]; do
    kill -0 "${servers[$name]}" 2>/dev/null || die "the server did not start: $(cat "$data/$name.log")"
    sleep 0.1
    url=$(sed -n 's/.*skep serves at \(http[^ ]*\).*/\1/p' "$data/$name.log" | head -n 1)
  done
  urls[$name]=$url
  use "$name"
}

# use NAME: the server of the next commands.
use() {
  SKEP_URL="${urls[$1]}" SKEP_DATA_DIR="$data/$1" SKEP_API_KEY=$(cat "$data/$1/admin.key")
  export SKEP_URL SKEP_DATA_DIR SKEP_API_KEY
}

# Stops all servers with their VMs.
stop() {
  local name
  for name in "${!servers[@]}"; do
    kill -INT "${servers[$name]}" 2>/dev/null && wait "${servers[$name]}" || true
  done
  servers=()
}
trap 'stop; rm -rf "$data"' EXIT
