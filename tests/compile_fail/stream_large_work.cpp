// expect: work for an asynchronous stream is kept by value
// compilers: gcc clang
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A closure that owns something cannot wait in a ring of bytes.
#include <vector>

#include "belay/device/queue_stream.hpp"

void go(belay::queue_stream& stream, std::vector<int>& numbers) {
#ifdef BELAY_BROKEN
  stream.run([numbers] { static_cast<void>(numbers); });
#else
  stream.run([&numbers] { numbers.push_back(1); });
#endif
}
