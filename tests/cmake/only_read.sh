# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# only_read.sh <object> <compiler> <flags...>: an object without code, where the compiler has nothing to say.
object=$1
shift
rm -f "$object"
"$@" -fsyntax-only && : >"$object"
