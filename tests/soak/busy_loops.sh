# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# Sourced by what runs beside two busy loops. They end with the script, however that ends.

busy=()
trap '[ ${#busy[@]} = 0 ] || kill "${busy[@]}" 2>/dev/null' EXIT
trap 'exit 130' INT TERM HUP
for _ in 1 2; do
  while kill -0 $$ 2>/dev/null; do for ((i = 0; i < 100000; ++i)); do :; done; done &
  busy+=($!)
done
