// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <array>

#include <belay/core/view.hpp>
#include <belay/version.hpp>
#if __has_include(<belay/belay.hpp>)
#include <belay/belay.hpp>
#endif

int main() {
  std::array<float, 6> storage{};
  const belay::view<float, 2> matrix{storage.data(), {2, 3}};
  return matrix.size() == 6 && BELAY_VERSION >= 100 ? 0 : 1;
}
