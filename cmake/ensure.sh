# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# Shared by examples/run, tests/run and bench/run, so that they cannot differ: installing what is missing,
# configuring and building quietly. Sourced by bash; sets `root` (the repository) and `jobs`.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
jobs=$(nproc 2>/dev/null || echo 2)
export PATH="$PATH:/usr/local/cuda/bin"
export CMAKE_COLOR_DIAGNOSTICS=OFF

# Ctrl-C reaches the command that runs; when it has ended, so do we.
trap 'echo "Interrupted" >&2; exit 130' INT
trap 'exit 143' TERM

say() { printf '%s\n' "$*"; }
complain() { printf '%s\n' "$*" >&2; }

# The first place that has the header, as the compilers search.
header() {
  local folder
  for folder in /usr/include /usr/local/include "/usr/include/$(uname -m)-linux-gnu"; do
    [ -e "$folder/$1" ] && return 0
  done
  return 1
}

# Is the Debian package needed? Asked of what it provides, so that the same thing from elsewhere will do.
present() {
  case $1 in
    g++ | git | ccache | python3 | doxygen | chromium) command -v "$1" >/dev/null ;;
    chromium-driver) command -v chromedriver >/dev/null ;;
    cmake) command -v cmake >/dev/null && cmake_new_enough ;;
    ninja-build) command -v ninja >/dev/null ;;
    clang-19) command -v clang++-19 >/dev/null ;;
    clang-tools-19) command -v clang-query-19 >/dev/null ;;
    libclang-rt-19-dev)
      local runtime
      runtime=$(clang++-19 -print-file-name=libclang_rt.asan-"$(uname -m)".a 2>/dev/null)
      [ -e "$runtime" ] || [ -e "$(clang++-19 -print-file-name=libclang_rt.asan.a 2>/dev/null)" ]
      ;;
    libopenblas-dev) header cblas.h && [ -e "$(gcc -print-file-name=libopenblas.so 2>/dev/null)" ] ;;
    liburing-dev) header liburing.h && [ -e "$(gcc -print-file-name=liburing.so 2>/dev/null)" ] ;;
    libcli11-dev) header CLI/CLI.hpp ;;
    nlohmann-json3-dev) header nlohmann/json.hpp ;;
    doctest-dev) header doctest/doctest.h ;;
    libbenchmark-dev) header benchmark/benchmark.h ;;
    *) dpkg-query -W -f='${Status}' "$1" 2>/dev/null | grep -q '^install ok installed$' ;;
  esac
}

cmake_new_enough() {
  local version
  version=$(cmake --version | sed -n '1s/[^0-9]*\([0-9]*\.[0-9]*\).*/\1/p')
  [ "$(printf '%s\n3.25\n' "$version" | sort -V | head -n 1)" = 3.25 ]
}

missing_of() {
  local package
  for package; do
    present "$package" || printf '%s ' "$package"
  done
}

# ensure "<packages that must be there>" "<packages that are good to have>": installs what is missing. Where that
# is not allowed or fails, prints the line to run; ends the script if one of the first kind is missing.
ensure() {
  local missing needed log line
  # Words are split on purpose here and below: these are lists.
  # shellcheck disable=SC2086
  missing=$(missing_of $1 $2)
  [ -z "$missing" ] && return 0
  missing=${missing% }
  line="apt-get install --yes --no-install-recommends $missing"
  log=$root/build/install.log
  mkdir -p "$root/build"
  if ! command -v apt-get >/dev/null; then
    complain "Missing (Debian's names): $missing"
  elif [ "$(id -u)" = 0 ]; then
    say "Installing $missing"
    install_packages "" "$missing" >"$log" 2>&1 || complain "apt-get failed, see $log. To run by hand: $line"
  elif command -v sudo >/dev/null && { sudo -n true 2>/dev/null || [ -t 0 ]; }; then
    say "Installing $missing (with sudo)"
    sudo true && install_packages sudo "$missing" >"$log" 2>&1 || complain "apt-get failed, see $log. To run by hand: sudo $line"
  else
    complain "Missing, and neither root nor sudo: run   sudo $line"
  fi
  hash -r
  # shellcheck disable=SC2086
  needed=$(missing_of $1)
  if [ -n "$needed" ]; then
    complain "Cannot go on without: $needed"
    exit 1
  fi
  # shellcheck disable=SC2086
  missing=$(missing_of $2)
  [ -z "$missing" ] || complain "Going on without: $missing"
}

install_packages() {
  # Package lists may be absent or old; a mirror that lacks one list may still have the packages.
  local apt="$1 env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 -o Acquire::http::Timeout=20 -o Acquire::https::Timeout=20"
  $apt update || true
  local install="$apt install --yes --no-install-recommends"
  local package failed=0
  # One package that the mirror does not have must not keep the others away.
  $install $2 || for package in $2; do $install "$package" || failed=1; done
  return $failed
}

# Whether a driver answers.
gpu_answers() { command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1; }

# expect_gpu <command> <tools...>: whether programs can be built for a GPU of this machine, which is named. Installs nothing.
expect_gpu() {
  local command=$1 tool
  shift
  for tool in g++ cmake ninja nvcc "$@"; do
    command -v "$tool" >/dev/null || { complain "$command: $tool is not found, and nothing is installed here"; return 1; }
  done
  gpu_answers && nvidia-smi -L && return
  complain "$command: nvidia-smi finds no GPU here, and nothing was built"
  return 1
}

# configure <build folder> <cmake arguments...>: into <build folder>/configure.log.
configure() {
  local dir=$1
  shift
  mkdir -p "$dir"
  set -- -S "$root" -B "$dir" -G Ninja "$@"
  if command -v ccache >/dev/null; then
    set -- "$@" -DCMAKE_CXX_COMPILER_LAUNCHER=ccache
  fi
  if ! flock "$dir/.lock" cmake "$@" >"$dir/configure.log" 2>&1; then
    complain "Configuring failed, see $dir/configure.log. It ends:"
    tail -n 15 "$dir/configure.log" >&2
    return 1
  fi
}

# first_errors <log of ninja>: what compilers and linkers say of them, nvcc's tools too; else the log's end.
first_errors() {
  grep -E -m 8 '(^|: )(fatal )?error: |^FAILED|^(nvcc|ptxas|nvlink) .*(fatal|error)|undefined reference|: note: .* is opened here' "$1" ||
    tail -n 15 "$1"
}

# build <build folder> <ninja arguments...>: into <build folder>/build.log; the first errors are shown.
build() {
  local dir=$1
  shift
  # Two starts at the same time build one after the other.
  if ! flock "$dir/.lock" ninja -C "$dir" -j "$jobs" "$@" >"$dir/build.log" 2>&1; then
    if tail -n 3 "$dir/build.log" | grep -q 'interrupted by user'; then
      complain "The build was interrupted; the same command goes on from there. Its log: $dir/build.log"
      return 1
    fi
    complain "Building failed, see $dir/build.log. The first errors:"
    first_errors "$dir/build.log" >&2
    return 1
  fi
}
