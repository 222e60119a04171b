#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# tests/run --cuda --pack [FILE]
#   builds on a machine without a card all that is run on one, and packs it as FILE (build/card.tgz): the programs of
#   tests/cuda, the benchmark of a device, the trainer, and on_the_card.sh, which runs them. Nothing in it needs the machine
#   that built it, but a C library that is not older than its. Takes its programs from CMake, installs nothing: what is not found is told and left out.
#   BELAY_CUDA_ARCHITECTURES are those that it is built for (90-real: H100 and H200).
set -u
. "$(dirname "${BASH_SOURCE[0]}")/../../cmake/ensure.sh"
here=$root/tests/cuda
file=${1:-$root/build/card.tgz}
jobs=${BELAY_JOBS:-$jobs}
case $file in /*) ;; *) file=$PWD/$file ;; esac

for tool in g++ cmake ninja nvcc strip readelf tar; do
  command -v "$tool" >/dev/null || { complain "tests/run --cuda --pack: $tool is not found, and nothing is installed here"; exit 1; }
done
dir=$root/build/tests/pack began=$SECONDS
# The trainer in few compilations; libraries of the compiler go along, those of CUDA are looked for where it runs.
configure "$dir" -DCMAKE_CXX_COMPILER=g++ -DCMAKE_BUILD_TYPE=Release "-DCMAKE_CUDA_COMPILER=$(command -v nvcc)" \
  "-DCMAKE_CUDA_ARCHITECTURES=${BELAY_CUDA_ARCHITECTURES:-90-real}" -DCMAKE_CUDA_FLAGS=-lineinfo -DCMAKE_SKIP_RPATH=ON \
  "-DCMAKE_EXE_LINKER_FLAGS=-static-libstdc++ -static-libgcc -Wl,-z,lazy" -DBELAY_TEST_CUDA=ON -DBELAY_TEST_STATIC=OFF \
  -DBELAY_TEST_ROOMS=^none -DBELAY_TEST_CORPUS=OFF -DBELAY_BUILD_BENCH=OFF -DBELAY_TRAIN_MOE_CUDA=ON \
  -DBELAY_TRAINER_TOGETHER=ON -DBELAY_WERROR=OFF -DBELAY_CLANG=NOTFOUND -DBELAY_MPI=OFF -DBELAY_NATIVE=OFF -DBELAY_BLAS=OFF -DBELAY_LIBURING=0 || exit 1
grep -E 'not found|not built' "$dir/configure.log" | grep -vE 'liburing|MPI' | sed 's/^-- /    /'
list=$dir/tests/cuda/programs.txt
while read -r _ _ built; do rm -f "$built"; done <"$list"  # what does not build now is not packed as it was
# shellcheck disable=SC2046
build "$dir" -k 0 $(cut -d ' ' -f 2 "$list") || complain "tests/run --cuda --pack: goes on with what was built"

folder=$dir/card
rm -rf "$folder"
mkdir -p "$folder/bin" "$folder/bench" "$folder/without_nccl"
missing=
while read -r name target built; do
  [ -e "$built" ] || { missing+=" $name"; continue; }
  strip -s -o "$folder/bin/$target" "$built"
  needs=
  ! readelf -d "$built" | grep -q 'NEEDED.*libnccl' || needs=nccl
  ! readelf -d "$built" | grep -q 'NEEDED.*libcudnn' || needs=cudnn
  echo "$name $target $needs"
done <"$list" >"$folder/programs.txt"
# Where there is no NCCL, what needs it for some of its ranks alone still starts with this in its place.
g++ -shared -x c++ /dev/null -nostdlib -Wl,-soname,libnccl.so.2 -o "$folder/without_nccl/libnccl.so.2" || exit 1
cp "$here/on_the_card.sh" "$folder/"
cp "$root/bench/beside_torch.py" "$root/bench/cuda/torch_reference.py" "$folder/bench/"
cat "$root/README.md" "$root/CHANGELOG.md" "$root"/docs/*/*.md >"$folder/corpus.txt"  # what is trained on
(cd "$root" && git describe --always --dirty --abbrev=40 2>/dev/null || echo unknown) >"$folder/commit.txt"
mkdir -p "$(dirname "$file")"
tar -C "$folder" -czf "$file" . || exit 1
say "$file: $(wc -l <"$folder/programs.txt") programs, $((($(stat -c %s "$file") + 1048575) / 1048576)) MiB, $((SECONDS - began)) s"
most=$((60 << 20))
[ "$(stat -c %s "$file")" -le $most ] || complain "$file is larger than $((most >> 20)) MiB"
[ -z "$missing" ] || { complain "not built:$missing (see $dir/build.log)"; exit 1; }
