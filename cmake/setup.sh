# Sourced by ./run, ./test and .ci/run: finds or installs what the build needs, and builds a preset.
# Debian 12 and Ubuntu 24.04 have every package below under the same name.

assay_packages="g++ cmake ninja-build ccache nlohmann-json3-dev libfmt-dev libcli11-dev libsqlite3-dev
  libgtest-dev libgmock-dev libbenchmark-dev libdnnl-dev libssl-dev libxxhash-dev zlib1g-dev libjs-chart.js python3"

assay_say() { printf '%s\n' "assay: $*" >&2; }

# Packages of $assay_packages and of the arguments that are not installed.
assay_missing() {
  local package
  for package in $assay_packages "$@"; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || printf '%s ' "$package"
  done
}

# assay_install yes|no [PACKAGE...]: installs what is missing through apt, as root or with sudo.
assay_install() {
  local allowed=$1 missing sudo=""
  shift
  if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    assay_say "this is not a Debian or Ubuntu system; install these yourself, then use --no-install:"
    assay_say "a C++20 compiler (g++ 12 or newer), CMake 3.25, ninja, and the development files of nlohmann-json,"
    assay_say "fmt, CLI11, SQLite, OpenSSL, zlib and GoogleTest (optional: oneDNN, Google Benchmark, Chart.js 3)"
    [ "$allowed" = no ] && return 0
    return 1
  fi
  missing=$(assay_missing "$@")
  [ -z "$missing" ] && return 0
  if [ "$allowed" = no ]; then
    assay_say "not installed (--no-install): $missing"
    return 0
  fi
  if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || { assay_say "need root or sudo to install: $missing"; return 1; }
    sudo=sudo
  fi
  assay_say "installing: $missing"
  $sudo apt-get update -qq || assay_say "apt-get update failed; trying with the lists at hand"
  # shellcheck disable=SC2086
  DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends $missing >/dev/null || {
    assay_say "apt-get could not install: $missing"
    return 1
  }
}

# assay_build PRESET [TARGET...]: configures once, builds what changed, with ninja's progress line.
assay_build() {
  local preset=$1
  shift
  if [ ! -f "build/$preset/build.ninja" ]; then
    assay_say "configuring build/$preset"
    cmake --preset "$preset" >"/tmp/assay-configure-$$.log" 2>&1 || {
      cat "/tmp/assay-configure-$$.log" >&2
      rm -f "/tmp/assay-configure-$$.log"
      return 1
    }
    rm -f "/tmp/assay-configure-$$.log"
  fi
  ninja -C "build/$preset" "$@"
}
